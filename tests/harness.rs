//! Starts the real `host` binary on port 0, watches its output, kills it on drop.

use crate::wire::{Answer, Wire, request};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// The longest that a test waits for one event. Only a hang takes that long.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The version of wasi:http that a guest is built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum World {
    P2,
    P3,
}

impl World {
    /// The component of a house guest.
    pub fn guest(self, name: &str) -> PathBuf {
        Path::new(concat!(env!("OUT_DIR"), "/guests")).join(format!("{}.wasm", self.app(name)))
    }

    /// The name of the app that serves that component.
    pub fn app(self, name: &str) -> String {
        match self {
            World::P2 => format!("{name}-p2"),
            World::P3 => format!("{name}-p3"),
        }
    }
}

/// Makes two tests of each case, `p2::NAME` and `p3::NAME`.
macro_rules! on_both_worlds {
    ($($case:ident),* $(,)?) => {
        mod p2 {
            $(#[test] fn $case() { super::$case(crate::harness::World::P2) })*
        }
        mod p3 {
            $(#[test] fn $case() { super::$case(crate::harness::World::P3) })*
        }
    };
}

/// What a process wrote to one of its streams, line by line.
#[derive(Default)]
pub struct Lines {
    state: Mutex<(Vec<String>, bool)>,
    changed: Condvar,
}

impl Lines {
    fn read(stream: impl Read + Send + 'static) -> Arc<Lines> {
        let lines = Arc::new(Lines::default());
        let writer = lines.clone();
        thread::spawn(move || {
            let mut stream = BufReader::new(stream);
            let mut line = Vec::new();
            while matches!(stream.read_until(b'\n', &mut line), Ok(1..)) {
                let text = String::from_utf8_lossy(&line).trim_end().to_owned();
                line.clear();
                writer.state.lock().unwrap().0.push(text);
                writer.changed.notify_all();
            }
            writer.state.lock().unwrap().1 = true;
            writer.changed.notify_all();
        });
        lines
    }

    pub fn all(&self) -> Vec<String> {
        self.state.lock().unwrap().0.clone()
    }

    pub fn text(&self) -> String {
        self.all().join("\n")
    }

    /// Waits until `find` finds something in the lines so far.
    pub fn wait<T>(&self, what: &str, find: impl Fn(&[String]) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        let mut state = self.state.lock().unwrap();
        loop {
            if let Some(found) = find(&state.0) {
                return found;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if state.1 || left.is_zero() {
                let ended = if state.1 {
                    "the process ended"
                } else {
                    "time is up"
                };
                let text = state.0.join("\n");
                drop(state);
                panic!("{ended} without {what} in its output:\n{text}");
            }
            state = self.changed.wait_timeout(state, left).unwrap().0;
        }
    }

    /// Waits for the first line that contains every one of `needles`.
    pub fn wait_for(&self, needles: &[&str]) -> String {
        self.wait(&format!("{needles:?}"), |lines| {
            lines
                .iter()
                .find(|line| needles.iter().all(|needle| line.contains(needle)))
                .cloned()
        })
    }

    fn wait_for_end(&self) -> bool {
        let state = self.state.lock().unwrap();
        let (state, _) = self
            .changed
            .wait_timeout_while(state, PATIENCE, |state| !state.1)
            .unwrap();
        state.1
    }
}

/// A run of the `host` binary; killed on drop, its stderr printed when the test fails.
pub struct Process {
    child: Child,
    pub stdout: Arc<Lines>,
    pub stderr: Arc<Lines>,
}

impl Process {
    pub fn spawn<A: AsRef<OsStr>>(arguments: &[A], stdin: &[u8]) -> Process {
        let mut child = Command::new(env!("CARGO_BIN_EXE_host"))
            .args(arguments)
            .env(
                "XDG_CACHE_HOME",
                concat!(env!("CARGO_TARGET_TMPDIR"), "/cache"),
            )
            .env("AMBIENT_MARK", "must not reach a guest")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the host binary starts");
        let stdout = Lines::read(child.stdout.take().unwrap());
        let stderr = Lines::read(child.stderr.take().unwrap());
        // A process that ends without reading its stdin is no failure of the harness.
        let _ = child.stdin.take().unwrap().write_all(stdin);
        Process {
            child,
            stdout,
            stderr,
        }
    }

    /// Waits for the end of the process and gives its exit code.
    pub fn exit_code(&mut self) -> i32 {
        assert!(self.stderr.wait_for_end(), "the process does not end");
        let status = self.child.wait().unwrap();
        status
            .code()
            .unwrap_or_else(|| panic!("no exit code: {status}"))
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    fn status(&self, key: &str) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let text = std::fs::read_to_string(path).unwrap();
        let line = text.lines().find(|line| line.starts_with(key)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    pub fn threads(&self) -> u64 {
        self.status("Threads:")
    }

    pub fn resident_bytes(&self) -> u64 {
        self.status("VmRSS:") * 1024
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("--- stderr of host ---\n{}\n---", self.stderr.text());
        }
    }
}

/// Runs `host` to its end: exit code, stdout, stderr.
pub fn run<A: AsRef<OsStr>>(arguments: &[A]) -> (i32, String, String) {
    let mut process = Process::spawn(arguments, b"");
    let code = process.exit_code();
    assert!(process.stdout.wait_for_end(), "stdout stays open");
    (code, process.stdout.text(), process.stderr.text())
}

/// A `host serve` that listens.
pub struct Host {
    pub process: Process,
    pub addr: SocketAddr,
}

impl Host {
    /// `host serve --addr 127.0.0.1:0 ARGUMENTS`.
    pub fn start<A: AsRef<OsStr>>(arguments: &[A]) -> Host {
        Host::start_with_stdin(arguments, b"")
    }

    pub fn start_with_stdin<A: AsRef<OsStr>>(arguments: &[A], stdin: &[u8]) -> Host {
        let mut all = vec![
            OsStr::new("serve"),
            OsStr::new("--addr"),
            OsStr::new("127.0.0.1:0"),
        ];
        all.extend(arguments.iter().map(AsRef::as_ref));
        let process = Process::spawn(&all, stdin);
        let line = process
            .stderr
            .wait("a first line", |lines| lines.first().cloned());
        let addr = line
            .strip_prefix("Serving HTTP on http")
            .map(|rest| rest.trim_start_matches('s'))
            .and_then(|rest| rest.strip_prefix("://"))
            .and_then(|rest| rest.strip_suffix('/'))
            .and_then(|addr| addr.parse().ok());
        let Some(addr) = addr else {
            // Says what came after the unexpected line, for instance the rest of an error.
            process.stderr.wait_for_end();
            panic!("the first line is not the serving line: {line:?}");
        };
        Host { process, addr }
    }

    /// Serves a house guest, with more arguments.
    pub fn guest(world: World, name: &str, arguments: &[&str]) -> Host {
        let component = world.guest(name);
        let mut all = vec![component.as_os_str()];
        all.extend(arguments.iter().map(OsStr::new));
        Host::start(&all)
    }

    pub fn probe(world: World) -> Host {
        Host::guest(world, "probe", &[])
    }

    pub fn connect(&self) -> Wire<TcpStream> {
        Wire::connect(self.addr)
    }

    /// Sends a request on a connection of its own, and leaves the answer to be read.
    pub fn send(
        &self,
        method: &str,
        target: &str,
        fields: &[&str],
        body: &[u8],
    ) -> Wire<TcpStream> {
        let mut wire = self.connect();
        wire.send(&request(method, target, fields, body));
        wire
    }

    pub fn ask(&self, method: &str, target: &str, fields: &[&str], body: &[u8]) -> Answer {
        self.send(method, target, fields, body).answer(method)
    }

    pub fn get(&self, target: &str) -> Answer {
        self.ask("GET", target, &[], b"")
    }

    /// Sends a body in two parts to a target that echoes it; the second part leaves only after the
    /// first one has come back.
    #[track_caller]
    pub fn echoes_while_it_is_sent(&self, target: &str) {
        let mut wire = self.send("POST", target, &["Transfer-Encoding: chunked"], b"");
        wire.send_chunk(b"first");
        let head = wire.head().expect("a head before the body's end");
        assert_eq!(head.status(), 200);
        assert_eq!(wire.chunked_bytes(5), b"first");
        wire.send_chunk(b"second");
        assert_eq!(wire.chunked_bytes(6), b"second");
        wire.send_chunk(b"");
        assert_eq!(
            wire.chunk().as_deref(),
            Some(&b""[..]),
            "the echo does not end"
        );
    }

    pub fn log(&self) -> &Lines {
        &self.process.stderr
    }

    /// Waits until the listening socket is closed. Nothing but trying tells.
    pub fn wait_until_it_refuses(&self) {
        let deadline = Instant::now() + PATIENCE;
        while let Ok(socket) = TcpStream::connect_timeout(&self.addr, PATIENCE) {
            let _ = socket.shutdown(Shutdown::Both);
            assert!(
                Instant::now() < deadline,
                "the host still accepts connections"
            );
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A file in a directory that no other test uses, removed on drop.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new(test: &str, world: World) -> Scratch {
        let name = format!("{test}-{world:?}-{}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, content).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Percent-encodes a value of a query.
pub fn encode(value: &str) -> String {
    let mut encoded = String::new();
    for byte in value.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                encoded.push(byte as char)
            }
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

/// The probe's target that calls `url`.
pub fn call(url: &str) -> String {
    format!("/call?url={}", encode(url))
}

/// How many sockets with one end at one of these ports are in a state of `/proc/net/tcp`: 06 is
/// TIME_WAIT, 08 is CLOSE_WAIT.
pub fn sockets(ports: &[u16], state: &str) -> usize {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let is_ours = |end: &str| {
        let port = end.rsplit(':').next().unwrap();
        ports.contains(&u16::from_str_radix(port, 16).unwrap())
    };
    let rows = table.lines().skip(1).filter(|row| {
        let row: Vec<_> = row.split_whitespace().collect();
        row[3] == state && (is_ours(row[1]) || is_ours(row[2]))
    });
    rows.count()
}

/// Compares a stream with [`pattern`], piece by piece.
pub struct Expected {
    piece: Vec<u8>,
    pub count: u64,
}

impl Expected {
    const PIECE: usize = 251 * 1024;

    pub fn new() -> Expected {
        let piece = pattern(Expected::PIECE);
        Expected { piece, count: 0 }
    }

    #[track_caller]
    pub fn take(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let expected = &self.piece[(self.count % Expected::PIECE as u64) as usize..];
            let (now, later) = bytes.split_at(bytes.len().min(expected.len()));
            assert!(
                now == &expected[..now.len()],
                "bytes differ near {}",
                self.count
            );
            self.count += now.len() as u64;
            bytes = later;
        }
    }
}

/// The bytes that the probe streams: `i % 251`.
pub fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i % 251) as u8).collect()
}
