//! What is measured: one function for each group of rows.
//!
//! The sides of a comparison are started together and take turns, round by round, while the others
//! idle. A wrong or failed answer voids the round, which is repeated.

use crate::load::{self, Answer, Target};
use crate::report::{Goal, Measured, Report, Row};
use crate::servers::{Programs, Server, guest, proxy, upstream};
use anyhow::Context as _;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Rounds that count, of each side.
const ROUNDS: usize = 5;
/// Void rounds of a side after which it is given up.
const MAX_VOID: usize = 3;
/// Connections that ask without a pause.
const CLIENTS: usize = 64;
/// What the remote takes in the rows about waiting.
const REMOTE: Duration = Duration::from_secs(2);
/// File descriptors that the host needs besides two for each request that waits.
const OTHER_FILES: u64 = 200;
const MIB: f64 = (1 << 20) as f64;

const SERVLET: &str = "/localApp/async?delay=0&code=200";
const GREETING: Answer = Answer::Body(b"Hello, world!\n");
const PAGE: Answer = Answer::Body(include_bytes!("../../guest/remote/src/dummy.html"));

pub struct Bench {
    programs: Programs,
    filters: Vec<String>,
    /// Length of a round.
    time: Duration,
    files: u64,
    load_before: String,
    pub report: Report,
}

/// A server, and what it is asked.
struct Side {
    command: Command,
    target: Target,
    /// Connections that have asked once, and then do nothing while others are measured.
    idle: usize,
}

/// The row that compares ours with another side; none where its program is missing.
struct Rival {
    row: String,
    goal: Goal,
    side: Option<Side>,
}

impl Side {
    fn new(command: Command, path: &str, answer: Answer) -> Side {
        let path = path.into();
        Side {
            command,
            target: Target { path, answer },
            idle: 0,
        }
    }
}

impl Bench {
    pub fn new(filters: &[String], quick: bool) -> Bench {
        let seconds = if quick { 0.3 } else { 3.0 };
        Bench {
            programs: Programs::find(),
            filters: filters.to_vec(),
            time: Duration::from_secs_f64(seconds),
            files: raise_file_limit(),
            load_before: load_average(),
            report: Report::default(),
        }
    }

    /// All rows, in the order of the table.
    pub async fn run(&mut self) -> anyhow::Result<()> {
        self.hello().await;
        self.forward("p2", " fresh", 5.0, 0.55).await?;
        self.forward("p3", "", 3.5, 0.75).await?;
        self.in_process().await?;
        for version in ["p2", "p3"] {
            self.waiting(version, 500, 1.08).await?;
            self.waiting(version, 5_000, 1.5).await?;
        }
        self.start().await;
        self.idle_memory().await;
        self.spinning().await?;
        self.idle_connections().await;
        Ok(())
    }

    /// Where the numbers come from.
    pub fn conditions(&self) -> String {
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let processor = read("/proc/cpuinfo");
        let processor = processor
            .lines()
            .find_map(|line| line.strip_prefix("model name"));
        format!(
            "{cores} cores ({}), Linux {}; {ROUNDS} rounds of {:?}; load average before {}, after {}",
            processor
                .unwrap_or("unknown")
                .trim_matches([':', '\t', ' ']),
            read("/proc/sys/kernel/osrelease").trim(),
            self.time,
            self.load_before,
            load_average(),
        )
    }

    async fn hello(&mut self) {
        let reuse: &[&str] = &["--max-instance-reuse-count", "128"];
        for (name, version, flags, goal) in [
            ("hello p2 fresh", "p2", &[][..], 4.0),
            ("hello p2 reuse 128", "p2", reuse, 1.5),
            ("hello p3", "p3", &[], 2.0),
        ] {
            let component = guest("hello", version);
            let arguments = [flags, &[component.as_str()]].concat();
            let ours = Side::new(self.programs.host(&arguments), "/", GREETING);
            let theirs = self.programs.wasmtime(&arguments);
            let rival = Rival {
                row: name.into(),
                goal: Goal::RatioAtLeast(goal),
                side: theirs.map(|command| Side::new(command, "/", GREETING)),
            };
            self.compare(ours, vec![rival]).await;
        }
    }

    async fn forward(
        &mut self,
        version: &str,
        fresh: &str,
        to_wasmtime: f64,
        to_native: f64,
    ) -> anyhow::Result<()> {
        let rows = ["wasmtime", "native proxy"]
            .map(|rival| format!("forward {version}{fresh}, against {rival}"));
        if !rows.iter().any(|row| self.selects(row)) {
            return Ok(());
        }
        let upstream = Server::start(upstream()?)?;
        let remote = format!("REMOTE_URL=http://{}", upstream.addr);
        let component = guest("servlet", version);
        let arguments = ["--env", &remote, &component];
        let side = |command| Side::new(command, SERVLET, Answer::Number);
        let ours = side(self.programs.host(&arguments));
        let [against_wasmtime, against_native] = rows;
        let rivals = vec![
            Rival {
                row: against_wasmtime,
                goal: Goal::RatioAtLeast(to_wasmtime),
                side: self.programs.wasmtime(&arguments).map(side),
            },
            Rival {
                row: against_native,
                goal: Goal::RatioAtLeast(to_native),
                side: Some(side(proxy(upstream.addr)?)),
            },
        ];
        self.compare(ours, rivals).await;
        Ok(())
    }

    /// Servlet and remote in one process, against the same two in one process each.
    async fn in_process(&mut self) -> anyhow::Result<()> {
        let row = "forward p3 in process, against TCP";
        if !self.selects(row) {
            return Ok(());
        }
        let remote = Server::start(self.programs.host(&["builtin:remote"]))?;
        let url = format!("REMOTE_URL=http://{}", remote.addr);
        let over_tcp = self.programs.host(&["--env", &url, "builtin:servlet"]);
        let ours = Side::new(self.programs.host(&[]), SERVLET, PAGE);
        let rival = Rival {
            row: row.into(),
            goal: Goal::RatioAtLeast(2.0),
            side: Some(Side::new(over_tcp, SERVLET, PAGE)),
        };
        self.compare(ours, vec![rival]).await;
        Ok(())
    }

    async fn idle_connections(&mut self) {
        for (row, idle) in [
            ("256 idle connections, against 16", 256),
            ("4096 idle connections, against 16", 4096),
        ] {
            let component = guest("hello", "p3");
            let side = |idle| Side {
                idle,
                ..Side::new(self.programs.host(&[&component]), "/", GREETING)
            };
            let rival = Rival {
                row: row.into(),
                goal: Goal::RatioAtLeast(0.9),
                side: Some(side(16)),
            };
            self.compare(side(idle), vec![rival]).await;
        }
    }

    /// The longest of many that wait for a slow remote together.
    async fn waiting(&mut self, version: &str, clients: usize, most: f64) -> anyhow::Result<()> {
        let name = format!("{clients} wait 2 s at once, {version}");
        if !self.selects(&name) {
            return Ok(());
        }
        let needed = 2 * clients as u64 + OTHER_FILES;
        let ours = if self.files < needed {
            Err(format!("ulimit -n is {}, not {needed}", self.files))
        } else {
            let upstream = Server::start(upstream()?)?;
            let remote = format!("REMOTE_URL=http://{}", upstream.addr);
            let command = self
                .programs
                .host(&["--env", &remote, &guest("servlet", version)]);
            let server = Server::start(command)?;
            let target = Arc::new(Target {
                path: format!("/localApp/async?delay={}&code=200", REMOTE.as_millis()),
                answer: Answer::Number,
            });
            let burst = async |_| {
                let longest = load::burst(server.addr, &target, clients).await?;
                Ok(longest.as_secs_f64())
            };
            alternate(&name, "s", 1, burst).await.remove(0)
        };
        self.report.rows.push(Row {
            name,
            ours,
            theirs: Some(Ok(REMOTE.as_secs_f64())),
            unit: "s",
            goal: Goal::RatioAtMost(most),
        });
        Ok(())
    }

    /// From the start of the process to the end of its first answer, when the component was
    /// compiled by an earlier run.
    async fn start(&mut self) {
        let rows = [
            ("start to first response", Goal::AtMost(50.0)),
            (
                "start to first response, against wasmtime",
                Goal::RatioAtMost(1.0),
            ),
        ];
        if !rows.iter().any(|(row, _)| self.selects(row)) {
            return;
        }
        let component = guest("hello", "p3");
        let command = |side| match side {
            0 => Some(self.programs.host(&[&component])),
            _ => self.programs.wasmtime(&[&component]),
        };
        let target = Target {
            path: "/".into(),
            answer: GREETING,
        };
        let first_response = async |side| {
            let begin = Instant::now();
            let server = Server::start(command(side).context("no such program")?)?;
            let mut client = load::Client::connect(server.addr, &target).await?;
            client.ask().await?;
            let ms = begin.elapsed().as_secs_f64() * 1e3;
            anyhow::Ok((ms, server))
        };
        let has_wasmtime = command(1).is_some();
        let sides = 1 + usize::from(has_wasmtime);
        for side in 0..sides {
            // Compiles where that was never done. What fails here fails again below.
            if let Ok((_, server)) = first_response(side).await {
                _ = server.stop();
            }
        }
        let measure = async |side| Ok(first_response(side).await?.0);
        let mut medians = alternate(rows[0].0, "ms", sides, measure).await.into_iter();
        let ours = medians.next().expect("one median for each side");
        let theirs = medians.next().unwrap_or_else(no_wasmtime);
        for ((name, goal), theirs) in rows.into_iter().zip([None, Some(theirs)]) {
            self.add(name, ours.clone(), theirs, "ms", goal);
        }
    }

    /// The house guests have answered once, and their instances have gone.
    async fn idle_memory(&mut self) {
        let name = "idle resident memory, house guests";
        if !self.selects(name) {
            return;
        }
        let target = Arc::new(Target {
            path: SERVLET.into(),
            answer: PAGE,
        });
        let resident = async |_| {
            let server = Server::start(self.programs.host(&[]))?;
            load::connect_and_ask(server.addr, &target, 1).await?;
            // Instances idle for one second by default.
            tokio::time::sleep(Duration::from_secs(2)).await;
            Ok(server.resident_bytes()? as f64 / MIB)
        };
        let ours = alternate(name, "MiB", 1, resident).await.remove(0);
        self.add(name, ours, None, "MiB", Goal::AtMost(40.0));
    }

    /// Clients of a short request while half as many guests compute without end.
    async fn spinning(&mut self) -> anyhow::Result<()> {
        let name = "hello's 99th percentile, half as many spin";
        if !self.selects(name) {
            return Ok(());
        }
        const SHORT: usize = 32;
        let server = Server::start(self.programs.host(&[&guest("probe", "p2")]))?;
        let spin = Target {
            path: "/spin".into(),
            // Over its limit of computing time, if the round lasts that long.
            answer: Answer::Status(503),
        };
        let hello = Arc::new(Target {
            path: "/hello".into(),
            answer: Answer::Body(b"probe\n"),
        });
        let percentile = async |_| {
            let mut spinners = JoinSet::new();
            for _ in 0..SHORT / 2 {
                let mut client = load::Client::connect(server.addr, &spin).await?;
                spinners.spawn(async move {
                    loop {
                        if let Err(error) = client.ask().await {
                            return error;
                        }
                    }
                });
            }
            let round = load::closed_loop(server.addr, &hello, SHORT, self.time).await?;
            match spinners.try_join_next() {
                Some(ended) => Err(ended?.context("a guest does not spin")),
                None => Ok(round.percentile_99.as_secs_f64() * 1e3),
            }
        };
        let ours = alternate(name, "ms", 1, percentile).await.remove(0);
        self.add(name, ours, None, "ms", Goal::AtMost(100.0));
        Ok(())
    }

    fn selects(&self, name: &str) -> bool {
        self.filters.is_empty() || self.filters.iter().any(|filter| name.contains(filter))
    }

    fn add(
        &mut self,
        name: &str,
        ours: Measured,
        theirs: Option<Measured>,
        unit: &'static str,
        goal: Goal,
    ) {
        if self.selects(name) {
            let name = name.into();
            self.report.rows.push(Row {
                name,
                ours,
                theirs,
                unit,
                goal,
            });
        }
    }

    /// Requests a second of ours and of those rivals whose rows are wanted: one row for each.
    async fn compare(&mut self, ours: Side, mut rivals: Vec<Rival>) {
        rivals.retain(|rival| self.selects(&rival.row));
        let Some(Rival { row: name, .. }) = rivals.first() else {
            return;
        };
        let unit = "requests/s";
        let name = name.clone();
        let (mut sides, mut rows) = (vec![ours], Vec::new());
        for Rival { row, goal, side } in rivals {
            // Where in the list of medians its own will be.
            let at = side.is_some().then_some(sides.len());
            sides.extend(side);
            rows.push((row, goal, at));
        }
        let started = sides.into_iter().map(|side| {
            let server = Server::start(side.command).map_err(|error| format!("{error:#}"));
            (server, Arc::new(side.target), side.idle)
        });
        let started = Vec::from_iter(started);
        let time = self.time;
        let rate = async |side: usize| {
            let (server, target, idle) = &started[side];
            let server = server.as_ref().map_err(|why| anyhow::anyhow!("{why}"))?;
            let idle = load::connect_and_ask(server.addr, target, *idle).await?;
            let round = load::closed_loop(server.addr, target, CLIENTS, time).await;
            drop(idle);
            let round = round.with_context(|| format!("log: {}", server.log()))?;
            Ok(round.per_second)
        };
        let medians = alternate(&name, unit, started.len(), rate).await;
        for (row, goal, at) in rows {
            let theirs = at.map_or_else(no_wasmtime, |at| medians[at].clone());
            self.add(&row, medians[0].clone(), Some(theirs), unit, goal);
        }
    }
}

fn no_wasmtime() -> Measured {
    Err("no wasmtime: set HOST_COMPAT_WASMTIME, or put it on the PATH".into())
}

/// The median of [`ROUNDS`] rounds of each of `sides`, which take turns.
async fn alternate(
    name: &str,
    unit: &str,
    sides: usize,
    measure: impl AsyncFn(usize) -> anyhow::Result<f64>,
) -> Vec<Measured> {
    let mut values = vec![Vec::new(); sides];
    let mut void = vec![Vec::new(); sides];
    let missing = |values: &[f64], void: &[String]| values.len() < ROUNDS && void.len() < MAX_VOID;
    while (0..sides).any(|side| missing(&values[side], &void[side])) {
        for side in 0..sides {
            if !missing(&values[side], &void[side]) {
                continue;
            }
            let who = ["ours", "theirs", "third"][side];
            match measure(side).await {
                Ok(value) => {
                    eprintln!("{name}: {who} {value:.1} {unit}");
                    values[side].push(value);
                }
                Err(error) => {
                    eprintln!("{name}: {who} void: {error:#}");
                    void[side].push(format!("{error:#}"));
                }
            }
        }
    }
    let medians = values.into_iter().zip(void);
    let medians = medians.map(|(values, mut void)| match median(values) {
        Some(median) => Ok(median),
        None => Err(format!(
            "{} void rounds, the last: {}",
            void.len(),
            void.pop().unwrap_or_default()
        )),
    });
    medians.collect()
}

/// Of five or more.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    (values.len() >= ROUNDS).then(|| values[values.len() / 2])
}

/// As many open files as the hard limit allows, for the servers too, which inherit it.
fn raise_file_limit() -> u64 {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    _ = setrlimit(Resource::Nofile, raised);
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Of the last minute.
fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or_default().into()
}
