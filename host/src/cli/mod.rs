//! The command line: what can be typed, and what it means as a [`Config`].
//!
//! Flags keep the names that they have in `wasmtime serve`, so that a script
//! that ran it runs this.

mod apps;
mod parse;

use crate::builtin;
use crate::component::{ReuseChoice, Source};
use crate::config::{Config, Upstreams};
use crate::flags::{Flags, Groups};
use crate::limits::Limits;
use crate::outgoing::destination::Destination;
use crate::outgoing::policy::Policy;
use crate::outgoing::tls::ClientCertificate;
use crate::tls::{KeyPair, TlsConfig};
use anyhow::{Context as _, bail, ensure};
use apps::Apps;
use clap::{Args, Parser, Subcommand};
use parse::{
    at_least_8_kib, at_least_one, inherited_env, parse_client_certificate, parse_destination,
    parse_dir, parse_duration, parse_env, parse_headers,
};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Serves WebAssembly HTTP components (wasi:http 0.2 and 0.3).
#[derive(Parser)]
#[command(name = "host", version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Serve a component, or the house guests where none is given
    Serve(Box<Serve>),
    /// Compile a component to native code of this machine
    Compile(Compile),
    /// Tell what a component imports, exports and needs
    Inspect(Inspect),
    /// Print completions for a shell
    Completions {
        #[arg(value_name = "SHELL")]
        shell: clap_complete::Shell,
    },
}

#[derive(Args)]
pub struct Serve {
    /// A component (.wasm or .wat), `-` for standard input, or builtin:NAME
    /// with servlet, remote or hello, and -p2 behind it for wasi:http 0.2
    #[arg(value_name = "COMPONENT")]
    component: Option<PathBuf>,

    /// Address to listen on; port 0 takes a free one
    #[arg(long, value_name = "SOCKADDR", default_value = "127.0.0.1:8080")]
    addr: SocketAddr,

    /// Certificate for TLS, with the chain to its root, in PEM; repeat it with
    /// --tls-key for more names
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Vec<PathBuf>,

    /// Key of the certificate at the same place, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Vec<PathBuf>,

    /// Roots, in PEM, that clients need a certificate of
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_client_ca: Option<PathBuf>,

    /// Address where a connection starts a graceful shutdown
    #[arg(long, value_name = "SOCKADDR")]
    shutdown_addr: Option<SocketAddr>,

    /// Environment variable of the guest; without a value, ours is passed on
    #[arg(long = "env", value_name = "NAME[=VALUE]")]
    env: Vec<String>,

    /// Directory of this machine that the guest may read and write, and the
    /// guest's name for it
    #[arg(long = "dir", value_name = "HOST[::GUEST]")]
    dirs: Vec<String>,

    /// Header set on each request before the guest sees it, in place of the
    /// client's; @FILE holds one per line
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,

    /// Destination that the guest's outgoing requests may reach, for example
    /// `https://api.example.com`, `*.example.com`, `10.0.0.0/8`,
    /// `http://APP.internal`; `none` alone permits nothing
    #[arg(long, value_name = "PATTERN")]
    egress: Vec<String>,

    #[command(flatten)]
    upstream: Upstream,

    /// Leave the instance's number off the guest's log lines
    #[arg(long)]
    no_logging_prefix: bool,

    /// Requests that one instance serves before it is dropped [default: 1 for
    /// wasi:http 0.2, 128 for 0.3]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    max_instance_reuse_count: Option<usize>,

    /// Requests that one instance serves at once [default: 16 for wasi:http
    /// 0.3; always 1 for 0.2]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    max_instance_concurrent_reuse_count: Option<usize>,

    /// Time that an idle instance waits for its next request (s, ms, us, ns)
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    idle_instance_timeout: Duration,

    /// Requests in flight at once [default: 5000]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    max_concurrent_requests: Option<usize>,

    /// Requests that may wait beyond that; further ones get 503 [default: 1000]
    #[arg(long, value_name = "N")]
    request_queue: Option<usize>,

    /// Connections open at once [default: 10000]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    max_concurrent_connections: Option<usize>,

    #[command(flatten)]
    client: ClientLimits,

    /// Time that a shutdown waits for what was accepted
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    drain_timeout: Duration,

    /// Time that a guest may compute for one request
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_duration)]
    cpu_timeout: Duration,

    /// Time that a guest may go on working after its answer is complete
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    background_timeout: Duration,

    /// Take native code (.cwasm), which is trusted, not checked
    #[arg(long)]
    allow_precompiled: bool,

    #[command(flatten)]
    wasmtime: Wasmtime,
}

/// What a client may send, and how slowly.
#[derive(Args)]
#[command(next_help_heading = "Clients")]
struct ClientLimits {
    /// Time for the head of a request, from its first byte
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    header_timeout: Duration,

    /// Time that a connection may be without a request
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
    keep_alive_timeout: Duration,

    /// Time that a client may read nothing of what is sent to it
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
    write_timeout: Duration,

    /// Time that a guest may wait for more of a request's body
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    body_timeout: Duration,

    /// Bytes of a request's body [default: no limit]
    #[arg(long, value_name = "BYTES")]
    max_request_body: Option<u64>,

    /// Bytes of a request line
    #[arg(long, value_name = "BYTES", default_value = "16384", value_parser = at_least_one)]
    max_request_line: usize,

    /// Bytes of a request's head
    #[arg(long, value_name = "BYTES", default_value = "65536", value_parser = at_least_8_kib)]
    max_header_bytes: usize,

    /// Header lines of a request
    #[arg(long, value_name = "N", default_value = "100", value_parser = at_least_one)]
    max_headers: usize,

    /// Requests that one connection may carry
    #[arg(long, value_name = "N", default_value = "100000")]
    max_requests_per_connection: u64,
}

/// How guests' outgoing requests are sent.
#[derive(Args)]
#[command(next_help_heading = "Outgoing requests")]
struct Upstream {
    /// Let guests set Host to something else than the URL's authority
    #[arg(long)]
    egress_set_host: bool,

    /// PEM file of roots to trust besides those of the platform and Mozilla's
    #[arg(long, value_name = "FILE")]
    egress_ca: Vec<PathBuf>,

    /// Client certificate for one destination, in PEM files
    #[arg(long, value_name = "URL=CERT,KEY", value_parser = parse_client_certificate)]
    egress_client_cert: Vec<ClientCertificate>,

    /// Destination without TLS that speaks HTTP/2, e.g. `http://10.0.0.5:8080`
    #[arg(long, value_name = "URL", value_parser = parse_destination)]
    egress_http2: Vec<Destination>,

    /// DNS server to ask in place of the system's
    #[arg(long, value_name = "SOCKADDR")]
    dns_server: Vec<SocketAddr>,

    /// DNS, TCP and TLS of one connection together
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    connect_timeout: Duration,

    /// From a request to the head of its response
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
    first_byte_timeout: Duration,

    /// Between two pieces of a response's body
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
    between_bytes_timeout: Duration,

    /// Connections of one app to one destination [default: no limit but that
    /// of file descriptors]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    max_connections_per_upstream: Option<usize>,

    /// Connections of one app to all destinations [default: the same]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    max_upstream_connections: Option<usize>,
}

/// The groups of wasmtime's own options; `-S help` and so on list them.
#[derive(Args, Default)]
pub struct Wasmtime {
    /// Optimization and tuning; `-O help` lists the keys
    #[arg(short = 'O', long = "optimize", value_name = "KEY[=VAL[,..]]")]
    optimize: Vec<String>,

    /// Code generation; `-C help` lists the keys
    #[arg(short = 'C', long = "codegen", value_name = "KEY[=VAL[,..]]")]
    codegen: Vec<String>,

    /// Debugging; `-D help` lists the keys
    #[arg(short = 'D', long = "debug", value_name = "KEY[=VAL[,..]]")]
    debug: Vec<String>,

    /// WebAssembly semantics and limits; `-W help` lists the keys
    #[arg(short = 'W', long = "wasm", value_name = "KEY[=VAL[,..]]")]
    wasm: Vec<String>,

    /// WASI; `-S help` lists the keys
    #[arg(short = 'S', long = "wasi", value_name = "KEY[=VAL[,..]]")]
    wasi: Vec<String>,
}

impl Wasmtime {
    pub fn flags(&self) -> anyhow::Result<Flags> {
        Flags::parse(Groups {
            wasi: &self.wasi,
            wasm: &self.wasm,
            optimize: &self.optimize,
            codegen: &self.codegen,
            debug: &self.debug,
        })
    }
}

#[derive(Args)]
pub struct Compile {
    /// The component to compile
    #[arg(value_name = "COMPONENT")]
    pub component: PathBuf,

    /// Where to write the native code [default: COMPONENT with .cwasm]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    #[command(flatten)]
    pub wasmtime: Wasmtime,
}

#[derive(Args)]
pub struct Inspect {
    /// The component to look at
    #[arg(value_name = "COMPONENT")]
    pub component: PathBuf,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// What COMPONENT names.
///
/// # Errors
/// There is no house guest of that name.
pub fn source(component: &Path) -> anyhow::Result<Source> {
    if component == Path::new("-") {
        return Ok(Source::Stdin);
    }
    let Some(name) = component
        .to_str()
        .and_then(|path| path.strip_prefix("builtin:"))
    else {
        return Ok(Source::File(component.to_owned()));
    };
    let (name, bytes) = builtin::find(name).with_context(|| {
        let known: Vec<_> = builtin::GUESTS.iter().map(|(name, _)| *name).collect();
        format!("there is no builtin:{name}; there are {}", known.join(", "))
    })?;
    Ok(Source::Builtin(name, bytes))
}

impl Serve {
    /// # Errors
    /// All that is wrong with the values, together.
    pub fn into_config(self) -> anyhow::Result<Config> {
        let mut problems = Vec::new();
        let (certificates, keys) = (self.tls_cert.len(), self.tls_key.len());
        if certificates != keys {
            problems.push(format!(
                "there are {certificates} --tls-cert and {keys} --tls-key"
            ));
        }
        let mut note = |problem: anyhow::Error| problems.push(format!("{problem:#}"));
        let env = self
            .env
            .iter()
            .filter_map(|v| parse_env(v).map_err(&mut note).ok()?);
        let env: Vec<_> = env.collect();
        let dirs = self
            .dirs
            .iter()
            .filter_map(|v| parse_dir(v).map_err(&mut note).ok());
        let dirs: Vec<_> = dirs.collect();
        let request_headers = parse_headers(&self.headers)
            .map_err(&mut note)
            .unwrap_or_default();
        let egress = match self.egress.as_slice() {
            [only] if only == "none" => Ok(Policy::closed()),
            patterns => Policy::parse(patterns),
        };
        let egress = egress.map_err(&mut note).ok();
        let flags = self.wasmtime.flags().map_err(&mut note).ok();
        let source = self
            .component
            .as_deref()
            .map(source)
            .transpose()
            .map_err(&mut note)
            .ok();
        let (Some(egress), Some(flags), Some(source)) = (egress, flags, source) else {
            bail!(problems.join("\n"));
        };
        ensure!(problems.is_empty(), problems.join("\n"));

        let apps = Apps {
            env: if flags.wasi().inherit_env {
                inherited_env().chain(env).collect()
            } else {
                env
            },
            dirs,
            reuse: ReuseChoice {
                total: self.max_instance_reuse_count,
                concurrent: self.max_instance_concurrent_reuse_count,
                idle: self.idle_instance_timeout,
            },
            egress: (!self.egress.is_empty()).then_some(egress),
            patterns: &self.egress,
            may_set_host: self.upstream.egress_set_host,
        };
        let (apps, notes) = match source {
            None => apps.house()?,
            Some(source) => apps.single(source),
        };
        let limits = self.limits(&flags);
        Ok(Config {
            listen: self.addr,
            tls: tls_config(self.tls_cert, self.tls_key, self.tls_client_ca),
            shutdown: self.shutdown_addr,
            apps,
            request_headers,
            limits,
            upstreams: Upstreams {
                dns_servers: self.upstream.dns_server,
                extra_roots: self.upstream.egress_ca,
                client_certificates: self.upstream.egress_client_cert,
                http2: self.upstream.egress_http2,
            },
            flags: Arc::new(flags),
            logging_prefix: !self.no_logging_prefix,
            allow_precompiled: self.allow_precompiled,
            notes,
        })
    }

    fn limits(&self, flags: &Flags) -> Limits {
        let defaults = Limits::default();
        Limits {
            requests: self.max_concurrent_requests.unwrap_or(defaults.requests),
            queue: self.request_queue.unwrap_or(defaults.queue),
            connections: self
                .max_concurrent_connections
                .unwrap_or(defaults.connections),
            header_read: self.client.header_timeout,
            idle: self.client.keep_alive_timeout,
            write_idle: self.client.write_timeout,
            requests_per_connection: self.client.max_requests_per_connection,
            request_line_bytes: self.client.max_request_line,
            body_bytes: self.client.max_request_body.unwrap_or(defaults.body_bytes),
            body_idle: self.client.body_timeout,
            head_bytes: self.client.max_header_bytes,
            headers: self.client.max_headers,
            drain: self.drain_timeout,
            background: self.background_timeout,
            computing: self.cpu_timeout,
            answer: flags.store().timeout.unwrap_or(defaults.answer),
            memory_bytes: flags
                .store()
                .max_memory_size
                .unwrap_or(defaults.memory_bytes),
            connect: self.upstream.connect_timeout,
            first_byte: self.upstream.first_byte_timeout,
            between_bytes: self.upstream.between_bytes_timeout,
            upstream_connections_per_destination: self
                .upstream
                .max_connections_per_upstream
                .unwrap_or(defaults.upstream_connections_per_destination),
            upstream_connections: self
                .upstream
                .max_upstream_connections
                .unwrap_or(defaults.upstream_connections),
            ..defaults
        }
    }
}

fn tls_config(
    certificates: Vec<PathBuf>,
    keys: Vec<PathBuf>,
    client_roots: Option<PathBuf>,
) -> Option<TlsConfig> {
    let pairs = certificates.into_iter().zip(keys);
    let key_pairs: Vec<_> = pairs
        .map(|(certificates, key)| KeyPair { certificates, key })
        .collect();
    (!key_pairs.is_empty()).then_some(TlsConfig {
        key_pairs,
        client_roots,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn no_two_flags_clash() {
        Cli::command().debug_assert();
    }

    /// What `--help` shows as a default is written there, and must be true.
    #[test]
    fn a_command_line_without_limits_has_the_default_ones() {
        let cli = Cli::try_parse_from(["host", "serve", "builtin:hello"]);
        let Ok(Cli {
            command: Command::Serve(serve),
        }) = cli
        else {
            panic!("the command is known");
        };
        let config = serve.into_config().unwrap();
        assert_eq!(config.limits, Limits::default());
    }

    #[test]
    fn all_mistakes_of_a_command_line_are_told_together() {
        let cli = Cli::try_parse_from([
            "host",
            "serve",
            "builtin:nobody",
            "--header",
            "none",
            "--env",
            "=x",
            "--dir",
            "/nowhere/at/all",
        ]);
        let Ok(Cli {
            command: Command::Serve(serve),
        }) = cli
        else {
            panic!("the flags themselves are known");
        };
        let text = format!("{:#}", serve.into_config().err().unwrap());
        for part in [
            "builtin:nobody",
            "--header \"none\"",
            "--env =x",
            "--dir /nowhere",
        ] {
            assert!(text.contains(part), "{part} is missing in: {text}");
        }
    }
}
