//! The processes under load: where their programs are, how they start, and how they end.

use anyhow::{Context as _, bail};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// From start to listening, compiling included.
const START: Duration = Duration::from_secs(60);
/// Lines of a server's log that are kept, to be shown when a round is void.
const KEPT: usize = 20;
/// What every server here says once it listens.
pub const LISTENING: &str = "Serving HTTP on http://";

/// The component of a house guest; `version` is `p2` or `p3`.
pub fn guest(name: &str, version: &str) -> String {
    format!("{}/guests/{name}-{version}.wasm", env!("OUT_DIR"))
}

/// Where the results and the compiled code of all runs are.
pub fn directory() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent();
    target
        .expect("a folder of the target directory")
        .join("bench")
}

pub struct Programs {
    host: PathBuf,
    wasmtime: Option<PathBuf>,
}

impl Programs {
    /// `HOST_BENCH_HOST` and `HOST_COMPAT_WASMTIME` name other programs than the one that cargo has
    /// built and the one on the PATH.
    pub fn find() -> Programs {
        let variable = |name| std::env::var_os(name).map(PathBuf::from);
        let path = std::env::var_os("PATH").unwrap_or_default();
        let on_path = || {
            std::env::split_paths(&path)
                .map(|folder| folder.join("wasmtime"))
                .find(|file| file.is_file())
        };
        Programs {
            host: variable("HOST_BENCH_HOST").unwrap_or_else(|| env!("CARGO_BIN_EXE_host").into()),
            wasmtime: variable("HOST_COMPAT_WASMTIME").or_else(on_path),
        }
    }

    pub fn host(&self, arguments: &[&str]) -> Command {
        serve(&self.host, arguments)
    }

    /// The same with `wasmtime serve`, where there is one. The guests import WASI's command-line
    /// world, which it links only when asked.
    pub fn wasmtime(&self, arguments: &[&str]) -> Option<Command> {
        let mut command = serve(self.wasmtime.as_ref()?, &["-S", "cli"]);
        command.args(arguments);
        Some(command)
    }
}

fn serve(program: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command
        .args(["serve", "--addr", "127.0.0.1:0"])
        .args(arguments)
        .env("XDG_CACHE_HOME", directory().join("cache"))
        // As a user runs it: with these, errors that nobody sees cost a walk of the stack.
        .env_remove("RUST_BACKTRACE")
        .env_remove("RUST_LIB_BACKTRACE")
        .env_remove("HOST_LOG");
    command
}

/// This program in the role of the upstream.
pub fn upstream() -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("--upstream");
    Ok(command)
}

/// This program in the role of the native proxy.
pub fn proxy(upstream: SocketAddr) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--proxy", &upstream.to_string()]);
    Ok(command)
}

/// A server that listens on a free port; killed on drop.
pub struct Server {
    child: Child,
    pub addr: SocketAddr,
    log: Arc<Mutex<VecDeque<String>>>,
}

impl Server {
    pub fn start(command: &mut Command) -> anyhow::Result<Server> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {command:?}"))?;
        let stderr = child.stderr.take().expect("stderr is a pipe");
        let log = Arc::new(Mutex::new(VecDeque::new()));
        let (sender, receiver) = mpsc::channel();
        // Ends with the process, whose stderr it reads.
        thread::spawn({
            let log = log.clone();
            move || {
                for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                    let addr = line.strip_prefix(LISTENING);
                    if let Some(Ok(addr)) = addr.map(|addr| addr.trim_end_matches('/').parse()) {
                        _ = sender.send(addr);
                    }
                    let mut log = log.lock().expect("nobody panics with the log");
                    log.push_back(line);
                    if log.len() > KEPT {
                        log.pop_front();
                    }
                }
            }
        });
        let mut server = Server {
            child,
            addr: SocketAddr::from(([0, 0, 0, 0], 0)),
            log,
        };
        match receiver.recv_timeout(START) {
            Ok(addr) => server.addr = addr,
            Err(RecvTimeoutError::Timeout) => {
                bail!("{command:?} does not listen: {}", server.log())
            }
            Err(RecvTimeoutError::Disconnected) => bail!("{command:?} ended: {}", server.log()),
        }
        Ok(server)
    }

    /// The last lines of its stderr.
    pub fn log(&self) -> String {
        let log = self.log.lock().expect("nobody panics with the log");
        Vec::from_iter(log.iter().map(String::as_str)).join("\n")
    }

    pub fn resident_bytes(&self) -> anyhow::Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
        Ok(kib.context("/proc/PID/status without VmRSS")? * 1024)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}
