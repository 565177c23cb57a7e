//! The composition root: builds each part once, in order, binds before it
//! serves, and drains with a deadline. The only file that knows everybody.

use crate::component::{App, Loader};
use crate::config::{AppConfig, Config, Note, Upstreams};
use crate::connection::Connections;
use crate::cpu::Turns;
use crate::dispatch::Dispatch;
use crate::egress::{Door, Egress, InProcess};
use crate::engine::{self, Ticker};
use crate::instance::Workers;
use crate::limits::Limits;
use crate::outgoing::resolve::Resolver;
use crate::outgoing::tls::Tls;
use crate::outgoing::{Bounds, Client, Deadlines, Shared};
use crate::router::Router;
use crate::server::{self, Server};
use crate::tls::ServerTls;
use crate::wasi::{self, Rights};
use anyhow::Context as _;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// A host whose apps are loaded.
pub struct Host {
    config: Config,
    /// Told after the first line, which is the address.
    warnings: Vec<String>,
    dispatch: Arc<Dispatch>,
    workers: Arc<Workers>,
    /// The apps' doors hold this weakly: apps that hold each other would stay
    /// for ever.
    _inside: Inside,
    _ticker: Ticker,
}

/// Where in-process calls find their app: set once all apps are loaded.
type Inside = Arc<OnceLock<(HashMap<String, Arc<App>>, Arc<Dispatch>)>>;

impl Host {
    /// Loads every app and tries one instance of each.
    ///
    /// # Errors
    /// What is wrong with the configuration or a component.
    pub async fn build(mut config: Config) -> anyhow::Result<Self> {
        let mut warnings = Vec::new();
        let engine = engine::build(&config.flags, &config.limits, &mut warnings)?;
        let ticker = Ticker::start(&engine)?;
        let workers = Arc::<Workers>::default();
        let loader = Loader {
            linker: wasi::linker(&engine, &config.flags)?,
            engine,
            workers: Arc::clone(&workers),
            allow_precompiled: config.allow_precompiled,
            background: config.limits.background,
        };
        let shared = share(&config.upstreams)?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let turns = Arc::new(Turns::new(cores));
        let inside = Inside::default();
        let mut apps = HashMap::new();
        let mut routes = Vec::new();
        for app in std::mem::take(&mut config.apps) {
            let prefixes = app.routes.clone();
            let app = load(&loader, app, &config, &shared, &turns, &inside).await?;
            routes.extend(
                prefixes
                    .into_iter()
                    .map(|prefix| (prefix, Arc::clone(&app))),
            );
            apps.insert(app.name.to_string(), app);
        }
        let headers = std::mem::take(&mut config.request_headers);
        let dispatch = Arc::new(Dispatch::new(Router::new(routes), headers, &config.limits));
        _ = inside.set((apps, Arc::clone(&dispatch)));
        Ok(Self {
            config,
            warnings,
            dispatch,
            workers,
            _inside: inside,
            _ticker: ticker,
        })
    }

    /// Serves until a signal, then drains.
    ///
    /// # Errors
    /// An address cannot be listened on.
    pub async fn serve(self) -> anyhow::Result<()> {
        let limits = &self.config.limits;
        let listener = server::bind(self.config.listen, limits.backlog)?;
        let shutdown = match self.config.shutdown {
            Some(address) => Some(server::bind(address, 1)?),
            None => None,
        };
        let tls = self.config.tls.as_ref().map(ServerTls::new).transpose()?;
        let mut signals = Signals::new()?;
        self.announce(&listener, shutdown.as_ref())?;

        let drain = CancellationToken::new();
        let tasks = TaskTracker::new();
        let server = Server {
            listener,
            connections: Arc::new(Connections::new(
                Arc::clone(&self.dispatch),
                tls,
                drain.clone(),
                limits,
            )),
            permits: Arc::new(Semaphore::new(
                limits.connections.min(Semaphore::MAX_PERMITS),
            )),
            tasks: tasks.clone(),
        };
        let server = tokio::spawn(server.run(drain.clone()));
        tokio::select! {
            () = signals.next() => {}
            () = connection_to(shutdown.as_ref()) => {}
        }
        drain.cancel();
        server.await.context("the accept loop ended by itself")?;
        tasks.close();
        tokio::select! {
            () = signals.next() => tracing::warn!("second signal: not waiting any longer"),
            () = self.drain(&tasks, limits.drain) => {}
        }
        Ok(())
    }

    async fn drain(&self, tasks: &TaskTracker, longest: Duration) {
        let drained = async {
            tasks.wait().await;
            self.workers.drain().await;
        };
        if tokio::time::timeout(longest, drained).await.is_err() {
            tracing::error!(
                "the drain ends after {longest:?} with {} connections and {} instances left",
                tasks.len(),
                self.workers.alive()
            );
        }
    }

    fn announce(
        &self,
        listener: &TcpListener,
        shutdown: Option<&TcpListener>,
    ) -> anyhow::Result<()> {
        let address = listener.local_addr()?;
        let scheme = if self.config.tls.is_some() {
            "https"
        } else {
            "http"
        };
        let mut text = format!("Serving HTTP on {scheme}://{address}/\n");
        for note in &self.config.notes {
            match note {
                Note::Text(line) => text += &format!("{line}\n"),
                Note::Try(path) => text += &format!("  try {scheme}://{address}{path}\n"),
            }
        }
        if let Some(listener) = shutdown {
            let address = listener.local_addr()?;
            text += &format!("Listening for shutdown on tcp://{address}/\n");
        }
        // A closed stderr is no reason not to serve.
        _ = std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes());
        for warning in &self.warnings {
            tracing::warn!("{warning}");
        }
        Ok(())
    }
}

async fn load(
    loader: &Loader,
    app: AppConfig,
    config: &Config,
    shared: &Shared,
    turns: &Arc<Turns>,
    inside: &Inside,
) -> anyhow::Result<Arc<App>> {
    let policy = Arc::new(app.egress);
    let rights = Rights {
        env: app.env,
        dirs: app.dirs,
        flags: Arc::clone(&config.flags),
        memory_bytes: config.limits.memory_bytes,
        computing: config.limits.computing,
        turns: Arc::clone(turns),
        logging_prefix: config.logging_prefix,
        egress: Arc::new(Egress {
            client: Client::new(Arc::clone(&policy), shared, bounds(&config.limits)),
            policy,
            may_set_host: app.may_set_host,
            deadlines: Deadlines::new(&config.limits),
            door: door(inside),
        }),
    };
    let version = loader
        .load(&app.name, &app.source, rights, app.reuse)
        .await?;
    tracing::debug!("app {} serves {}", app.name, version.world);
    Ok(App::new(app.name, version))
}

fn share(upstreams: &Upstreams) -> anyhow::Result<Shared> {
    let tls = Tls::new(&upstreams.extra_roots, &upstreams.client_certificates)?;
    Ok(Shared {
        resolver: Arc::new(Resolver::new(&upstreams.dns_servers)?),
        tls: Arc::new(tls),
        prior_knowledge: upstreams.http2.iter().cloned().collect(),
    })
}

fn bounds(limits: &Limits) -> Bounds {
    Bounds {
        per_destination: limits.upstream_connections_per_destination,
        total: limits.upstream_connections,
        idle: limits.upstream_idle_connections,
        longest_idle: limits.upstream_idle,
    }
}

fn door(inside: &Inside) -> Door {
    let inside = Arc::downgrade(inside);
    Arc::new(move |name| {
        let inside = inside.upgrade()?;
        let (apps, dispatch) = inside.get()?;
        let app = Arc::clone(apps.get(&name.to_ascii_lowercase())?);
        let dispatch = Arc::clone(dispatch);
        let call: InProcess = Box::new(move |caller, request| {
            Box::pin(async move { dispatch.in_process(&app, caller, request).await })
        });
        Some(call)
    })
}

/// Resolves at the first connection; never without a listener.
async fn connection_to(listener: Option<&TcpListener>) {
    match listener {
        Some(listener) => _ = listener.accept().await,
        None => std::future::pending().await,
    }
}

struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
