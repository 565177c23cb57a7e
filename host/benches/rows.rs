//! What is measured: one function for each group of rows.
//!
//! The sides of a comparison are started together and take turns, round by round, while the others
//! idle. A wrong or failed answer voids the round, which is repeated.

use crate::load::{self, Answer, Client, Target};
use crate::report::{Goal, Measured, Missing, Report, Row, number};
use crate::servers::{Programs, Server, guest, proxy, upstream};
use anyhow::Context as _;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::process::Command;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Rounds that count, of each side.
const ROUNDS: usize = 5;
/// Void rounds of a side after which it is given up.
const MAX_VOID: usize = 3;
/// Connections that ask without a pause; in the row about spinning guests half as many.
const CLIENTS: usize = 64;
/// File descriptors that the host needs besides two for each request that waits.
const OTHER_FILES: u64 = 200;
/// A client that leaves takes its guest along within half of this.
const CANCELLED: Duration = Duration::from_millis(200);
const MIB: f64 = (1 << 20) as f64;

const SERVLET: &str = "/localApp/async?delay=0&code=200";
const GREETING: Answer = Answer::Body(b"Hello, world!\n");
const PAGE: Answer = Answer::Body(include_bytes!("../../guest/remote/src/dummy.html"));

pub struct Bench {
    programs: Programs,
    filters: Vec<String>,
    /// Length of a round.
    time: Duration,
    /// How many a process may have open.
    files: u64,
    load_before: String,
    pub report: Report,
}

/// A server, and what it is asked.
struct Side {
    command: Command,
    target: Target,
    /// Connections that have asked once, and do nothing more.
    idle: usize,
}

impl Side {
    fn new(command: Command, path: &'static str, answer: Answer) -> Side {
        let target = Target { path, answer };
        let idle = 0;
        Side {
            command,
            target,
            idle,
        }
    }
}

/// The row that compares ours with another side.
struct Rival {
    row: String,
    /// Of the ratio.
    at_least: f64,
    /// None where its program is missing.
    side: Option<Side>,
}

impl Bench {
    pub fn new(filters: &[String], quick: bool) -> Bench {
        Bench {
            programs: Programs::find(),
            filters: filters.to_vec(),
            time: Duration::from_millis(if quick { 300 } else { 3_000 }),
            files: raise_file_limit(),
            load_before: load_average(),
            report: Report::default(),
        }
    }

    /// All rows, in the order of the table.
    pub async fn run(&mut self) -> anyhow::Result<()> {
        self.hello("hello p2 fresh", "p2", &[], 4.0).await;
        let reuse = &["--max-instance-reuse-count", "128"];
        self.hello("hello p2 reuse 128", "p2", reuse, 1.5).await;
        self.hello("hello p3", "p3", &[], 2.0).await;
        self.forward("forward p2 fresh", "p2", 5.0, 0.55).await?;
        self.forward("forward p3", "p3", 3.5, 0.75).await?;
        self.in_process().await?;
        for version in ["p2", "p3"] {
            self.waiting(version, 500, 1.08).await?;
            self.waiting(version, 5_000, 1.5).await?;
        }
        self.start().await;
        self.idle_memory().await;
        self.spinning().await?;
        self.idle_connections(256).await;
        self.idle_connections(4_096).await;
        Ok(())
    }

    /// Where the numbers come from.
    pub fn conditions(&self) -> String {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let processor = read("/proc/cpuinfo");
        let mut lines = processor.lines();
        let model = lines.find_map(|line| line.strip_prefix("model name\t: "));
        format!(
            "{} cores ({}), Linux {}; {ROUNDS} rounds of {:?}; load average before {}, after {}",
            std::thread::available_parallelism().map_or(0, usize::from),
            model.unwrap_or("unknown"),
            read("/proc/sys/kernel/osrelease").trim(),
            self.time,
            self.load_before,
            load_average(),
        )
    }

    async fn hello(&mut self, row: &str, version: &str, flags: &[&str], at_least: f64) {
        let component = guest("hello", version);
        let arguments = [flags, &[component.as_str()]].concat();
        let side = |command| Side::new(command, "/", GREETING);
        let rival = Rival {
            row: row.into(),
            at_least,
            side: self.programs.wasmtime(&arguments).map(side),
        };
        let ours = side(self.programs.host(&arguments));
        self.compare(ours, vec![rival]).await;
    }

    async fn forward(
        &mut self,
        name: &str,
        version: &str,
        of_wasmtime: f64,
        of_native: f64,
    ) -> anyhow::Result<()> {
        let upstream = Server::start(&mut upstream()?)?;
        let remote = format!("REMOTE_URL=http://{}", upstream.addr);
        let component = guest("servlet", version);
        let arguments = ["--env", &remote, &component];
        let side = |command| Side::new(command, SERVLET, Answer::Number);
        let rivals = vec![
            Rival {
                row: format!("{name}, against wasmtime"),
                at_least: of_wasmtime,
                side: self.programs.wasmtime(&arguments).map(side),
            },
            Rival {
                row: format!("{name}, against native proxy"),
                at_least: of_native,
                side: Some(side(proxy(upstream.addr)?)),
            },
        ];
        let ours = side(self.programs.host(&arguments));
        self.compare(ours, rivals).await;
        Ok(())
    }

    /// Servlet and remote in one process, against the same two in one process each.
    async fn in_process(&mut self) -> anyhow::Result<()> {
        let row = "forward p3 in process, against TCP";
        if !self.selects(row) {
            return Ok(());
        }
        let remote = Server::start(&mut self.programs.host(&["builtin:remote"]))?;
        let url = format!("REMOTE_URL=http://{}", remote.addr);
        let over_tcp = self.programs.host(&["--env", &url, "builtin:servlet"]);
        let rival = Rival {
            row: row.into(),
            at_least: 2.0,
            side: Some(Side::new(over_tcp, SERVLET, PAGE)),
        };
        let ours = Side::new(self.programs.host(&[]), SERVLET, PAGE);
        self.compare(ours, vec![rival]).await;
        Ok(())
    }

    async fn idle_connections(&mut self, idle: usize) {
        let component = guest("hello", "p3");
        let side = |idle| Side {
            idle,
            ..Side::new(self.programs.host(&[&component]), "/", GREETING)
        };
        let rival = Rival {
            row: format!("{idle} idle connections, against 16"),
            at_least: 0.9,
            side: Some(side(16)),
        };
        self.compare(side(idle), vec![rival]).await;
    }

    /// The longest of many that wait together for a remote that takes 2 s.
    async fn waiting(&mut self, version: &str, clients: usize, most: f64) -> anyhow::Result<()> {
        let name = format!("{clients} wait 2 s at once, {version}");
        if !self.selects(&name) {
            return Ok(());
        }
        let upstream = Server::start(&mut upstream()?)?;
        let remote = format!("REMOTE_URL=http://{}", upstream.addr);
        let arguments = ["--env", &remote, &guest("servlet", version)];
        let needed = 2 * clients as u64 + OTHER_FILES;
        let server = if self.files < needed {
            let why = format!("ulimit -n is {}, less than {needed}", self.files);
            Err(Missing::Absent(why))
        } else {
            Ok(Server::start(&mut self.programs.host(&arguments))?)
        };
        let target = Target {
            path: "/localApp/async?delay=2000&code=200",
            answer: Answer::Number,
        };
        let longest = async |server: &mut Server| {
            let longest = load::burst(server.addr, target, clients).await?;
            Ok(longest.as_secs_f64())
        };
        let ours = alternate(&name, "s", vec![server], longest).await.remove(0);
        self.add(&name, ours, Some(Ok(2.0)), "s", Goal::RatioAtMost(most));
        Ok(())
    }

    /// From the start of the process to the end of its first answer, when the component was
    /// compiled by an earlier run.
    async fn start(&mut self) {
        let alone = "start to first response";
        let compared = "start to first response, against wasmtime";
        if !self.selects(alone) && !self.selects(compared) {
            return;
        }
        let component = guest("hello", "p3");
        let target = Target {
            path: "/",
            answer: GREETING,
        };
        let first_response = async |command: &mut Command| {
            let begin = Instant::now();
            let server = Server::start(command)?;
            Client::connect(server.addr, target).await?.ask().await?;
            Ok(begin.elapsed().as_secs_f64() * 1e3)
        };
        let ours = self.programs.host(&[&component]);
        let theirs = self
            .programs
            .wasmtime(&[&component])
            .ok_or_else(no_wasmtime);
        let mut sides = vec![Ok(ours), theirs];
        for command in sides.iter_mut().flatten() {
            // Compiles where that was never done. What fails here fails again below.
            let _: anyhow::Result<f64> = first_response(command).await;
        }
        let mut medians = alternate(alone, "ms", sides, first_response).await;
        let (theirs, ours) = (medians.remove(1), medians.remove(0));
        self.add(alone, ours.clone(), None, "ms", Goal::AtMost(50.0));
        self.add(compared, ours, Some(theirs), "ms", Goal::RatioAtMost(1.0));
    }

    /// The house guests have answered once, and their instances have gone.
    async fn idle_memory(&mut self) {
        let name = "idle resident memory, house guests";
        if !self.selects(name) {
            return;
        }
        let target = Target {
            path: SERVLET,
            answer: PAGE,
        };
        let resident = async |command: &mut Command| {
            let server = Server::start(command)?;
            Client::connect(server.addr, target).await?.ask().await?;
            // By default instances are kept for a second.
            tokio::time::sleep(Duration::from_secs(2)).await;
            Ok(server.resident_bytes()? as f64 / MIB)
        };
        let sides = vec![Ok(self.programs.host(&[]))];
        let ours = alternate(name, "MiB", sides, resident).await.remove(0);
        self.add(name, ours, None, "MiB", Goal::AtMost(40.0));
    }

    /// Clients of a short request while half as many guests compute without end.
    async fn spinning(&mut self) -> anyhow::Result<()> {
        let name = "hello's 99th percentile, half as many spin";
        if !self.selects(name) {
            return Ok(());
        }
        let clients = CLIENTS / 2;
        let spin = Target {
            path: "/spin",
            // Over its limit of computing time, if the round lasts that long.
            answer: Answer::Status(503),
        };
        let hello = Target {
            path: "/hello",
            answer: Answer::Body(b"probe\n"),
        };
        let percentile = async |server: &mut Server| {
            let mut spinners = JoinSet::new();
            for _ in 0..clients / 2 {
                let mut client = Client::connect(server.addr, spin).await?;
                spinners.spawn(async move {
                    loop {
                        if let Err(error) = client.ask().await {
                            return error;
                        }
                    }
                });
            }
            let round = load::closed_loop(server.addr, hello, clients, self.time).await?;
            if let Some(ended) = spinners.try_join_next() {
                return Err(ended?.context("a guest does not spin"));
            }
            drop(spinners);
            tokio::time::sleep(CANCELLED).await;
            Ok(round.percentile_99.as_secs_f64() * 1e3)
        };
        let server = Server::start(&mut self.programs.host(&[&guest("probe", "p2")]))?;
        let ours = alternate(name, "ms", vec![Ok(server)], percentile).await;
        self.add(name, ours[0].clone(), None, "ms", Goal::AtMost(100.0));
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
        let Some(Rival { row, .. }) = rivals.first() else {
            return;
        };
        let (name, unit, time) = (row.clone(), "requests/s", self.time);
        let mut sides = vec![start(Some(ours))];
        sides.extend(rivals.iter_mut().map(|rival| start(rival.side.take())));
        let rate = async |(server, side): &mut (Server, Side)| {
            let (addr, target) = (server.addr, side.target);
            let idle = load::connect_and_ask(addr, target, side.idle).await?;
            let round = load::closed_loop(addr, target, CLIENTS, time).await;
            drop(idle);
            let round = round.with_context(|| format!("log: {}", server.log()))?;
            Ok(round.per_second)
        };
        let medians = alternate(&name, unit, sides, rate).await;
        for (rival, theirs) in rivals.iter().zip(&medians[1..]) {
            let (ours, theirs) = (medians[0].clone(), Some(theirs.clone()));
            let goal = Goal::RatioAtLeast(rival.at_least);
            self.add(&rival.row, ours, theirs, unit, goal);
        }
    }
}

fn start(side: Option<Side>) -> Result<(Server, Side), Missing> {
    let mut side = side.ok_or_else(no_wasmtime)?;
    let server = Server::start(&mut side.command);
    let server = server.map_err(|error| Missing::Void(format!("{error:#}")))?;
    Ok((server, side))
}

fn no_wasmtime() -> Missing {
    Missing::Absent("no wasmtime: set HOST_COMPAT_WASMTIME, or put it on the PATH".into())
}

/// The median of [`ROUNDS`] rounds of each side; the sides take turns.
async fn alternate<Side>(
    name: &str,
    unit: &str,
    sides: Vec<Result<Side, Missing>>,
    measure: impl AsyncFn(&mut Side) -> anyhow::Result<f64>,
) -> Vec<Measured> {
    let mut turns = Vec::from_iter(sides.into_iter().map(|side| (side, Vec::new(), Vec::new())));
    for _ in 0..ROUNDS + MAX_VOID - 1 {
        for (at, (side, values, void)) in turns.iter_mut().enumerate() {
            let Ok(side) = side else { continue };
            if values.len() == ROUNDS || void.len() == MAX_VOID {
                continue;
            }
            let who = ["ours", "theirs", "native"][at];
            match measure(side).await {
                Ok(value) => {
                    eprintln!("{name}: {who} {} {unit}", number(value));
                    values.push(value);
                }
                Err(error) => {
                    eprintln!("{name}: {who} void: {error:#}");
                    void.push(format!("{error:#}"));
                }
            }
        }
    }
    let medians = turns.into_iter().map(|(side, mut values, void)| {
        side?;
        if values.len() < ROUNDS {
            let text = format!("{} void rounds: {}", void.len(), void.join("; "));
            return Err(Missing::Void(text));
        }
        values.sort_unstable_by(f64::total_cmp);
        Ok(values[ROUNDS / 2])
    });
    medians.collect()
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
