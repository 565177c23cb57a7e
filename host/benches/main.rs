//! `cargo bench`: the host beside `wasmtime serve` and a native proxy, on this machine, in one run.
//!
//! `rows` says what is measured, `servers` starts the processes, `load` asks them, `native` is what
//! they call and the proxy that they are compared with, `report` is the table. README.md says how to
//! run it and what each row means.

mod load;
mod native;
mod report;
mod rows;
mod servers;

use anyhow::{Context as _, anyhow, ensure};
use clap::Parser as _;
use rows::Bench;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// All of it together. Only a hang takes that long.
const PATIENCE: Duration = Duration::from_secs(30 * 60);

#[derive(clap::Parser)]
#[command(name = "bench", about = "Measures the host beside others")]
struct Arguments {
    /// Rows to measure: those whose name contains one of these [default: all]
    #[arg(value_name = "TEXT")]
    filters: Vec<String>,

    /// Short rounds: tells whether everything works, not how fast it is
    #[arg(long)]
    quick: bool,

    /// What cargo passes to every benchmark
    #[arg(long, hide = true)]
    bench: bool,

    /// Be the upstream that guests call
    #[arg(long, hide = true)]
    upstream: bool,

    /// Be the native proxy in front of that upstream
    #[arg(long, hide = true)]
    proxy: Option<SocketAddr>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match (arguments.upstream, arguments.proxy) {
        (true, _) => native::upstream(),
        (false, Some(upstream)) => native::proxy(upstream),
        (false, None) => measure(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whatever ends this future ends the servers that it started.
#[tokio::main(flavor = "current_thread")]
async fn measure(arguments: &Arguments) -> anyhow::Result<()> {
    let mut terminated = signal(SignalKind::terminate())?;
    let mut bench = Bench::new(&arguments.filters, arguments.quick);
    let done = tokio::select! {
        done = tokio::time::timeout(PATIENCE, bench.run()) => {
            done.map_err(|_| anyhow!("not through after {PATIENCE:?}"))
        }
        _ = tokio::signal::ctrl_c() => Err(anyhow!("interrupted")),
        _ = terminated.recv() => Err(anyhow!("terminated")),
    };
    println!("{}\n{}", bench.report, bench.conditions());
    done??;
    ensure!(
        !bench.report.rows.is_empty(),
        "no row has {:?} in its name",
        arguments.filters
    );
    let file = bench.report.write().context("cannot write the results")?;
    println!("written to {}", file.display());
    Ok(())
}
