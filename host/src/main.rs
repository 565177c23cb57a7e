//! The command `host`.

use clap::{CommandFactory as _, Parser as _};
use host::cli::{Cli, Command};
use host::host::Host;
use host::inspect;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Something went wrong while running.
const RUNTIME: u8 = 1;
/// Something is wrong with what was asked for.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let cli = Cli::parse();
    start_log();
    match run(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err((code, error)) => {
            // A closed stderr does not change how the command ends.
            let text = format!("error: {error:#}\n");
            _ = std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes());
            ExitCode::from(code)
        }
    }
}

fn run(command: Command) -> Result<(), (u8, anyhow::Error)> {
    let usage = |error| (USAGE, error);
    let runtime = |error| (RUNTIME, error);
    match command {
        Command::Serve(serve) => {
            let config = serve.into_config().map_err(usage)?;
            let tokio = tokio::runtime::Builder::new_multi_thread()
                .enable_all()
                .build()
                .map_err(|error| runtime(error.into()))?;
            let host = tokio.block_on(Host::build(config)).map_err(usage)?;
            let result = tokio.block_on(host.serve()).map_err(runtime);
            // What did not end within the drain's deadline is not waited for.
            tokio.shutdown_background();
            result
        }
        Command::Compile(compile) => inspect::run_compile(&compile).map_err(usage),
        Command::Inspect(inspect) => inspect::run_inspect(&inspect).map_err(usage),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "host", &mut std::io::stdout());
            Ok(())
        }
    }
}

/// `HOST_LOG` filters what is logged, as `RUST_LOG` does elsewhere. Default
/// `info`.
fn start_log() {
    let filter = EnvFilter::try_from_env("HOST_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let ansi = std::io::IsTerminal::is_terminal(&std::io::stderr());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(ansi)
        .with_target(false)
        // To tell of a log that cannot be written there is only the log: what
        // cannot be written is dropped, and no request notices.
        .log_internal_errors(false)
        .init();
}
