//! What a guest's imports lead to: the data of a store, the linker for
//! wasi 0.2 and 0.3, and the hooks from `wasi:http` to the outgoing client.
//!
//! Everything of WASI's CLI world is linked, so that a component built with a
//! standard library finds its imports, but nothing is ambient: what a guest
//! may see or reach is what [`Rights`] says.

use crate::cpu::{Computing, Turns};
use crate::egress::Egress;
use crate::exchange::Exchange;
use crate::flags::Flags;
use crate::guest_log::{GuestLog, Target};
use crate::outgoing::policy::Policy;
use crate::roster::Roster;
use crate::suspension::Suspensions;
use crate::world::World;
use anyhow::Context as _;
use http::header::HOST;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use wasmtime::component::{Accessor, HasData, Linker, Resource, ResourceTable};
use wasmtime::{AsContextMut as _, Engine, Store, StoreLimits, StoreLimitsBuilder};
use wasmtime_wasi::sockets::SocketAddrUse;
use wasmtime_wasi::{FsPerms, WasiCtx, WasiCtxBuilder, WasiCtxView, WasiView};
use wasmtime_wasi_config::{WasiConfig, WasiConfigVariables};
use wasmtime_wasi_http::p2::bindings::http::types as p2_types;
use wasmtime_wasi_http::p2::types::HostIncomingRequest;
use wasmtime_wasi_http::p3::bindings::http::{client, types as p3_types};
use wasmtime_wasi_http::{
    DEFAULT_FORBIDDEN_HEADERS, Error, ForbiddenHeaderFilter, RequestOptions, WasiBody, WasiHttp,
    WasiHttpCtx, WasiHttpCtxView, WasiHttpHooks, WasiHttpView,
};
use wasmtime_wasi_keyvalue::{WasiKeyValue, WasiKeyValueCtx, WasiKeyValueCtxBuilder};

/// What the guests of one app may see and reach.
pub struct Rights {
    pub env: Vec<(String, String)>,
    /// Directories of this machine and the names that the guest has for them.
    pub dirs: Vec<(PathBuf, String)>,
    pub flags: Arc<Flags>,
    pub memory_bytes: usize,
    /// How long a guest may compute for one request.
    pub computing: Duration,
    pub turns: Arc<Turns>,
    pub logging_prefix: bool,
    pub egress: Arc<Egress>,
}

impl Rights {
    /// A store for one instance. `number` tells instances apart in the log and
    /// is in the guest's environment as `INSTANCE_ID`.
    pub fn store(
        &self,
        engine: &Engine,
        world: World,
        number: u64,
        roster: Arc<Roster>,
    ) -> wasmtime::Result<Store<Ctx>> {
        let wasi = self.flags.wasi();
        let mut table = ResourceTable::new();
        if let Some(most) = wasi.max_resources {
            table.set_max_capacity(most);
        }
        let mut http = WasiHttpCtx::new();
        if let Some(bytes) = wasi.max_http_fields_size {
            http.set_field_size_limit(bytes);
        }
        let ctx = Ctx {
            wasi: self.wasi_ctx(number)?,
            table,
            http,
            hooks: Hooks {
                current: None,
                suspensions: Arc::clone(&roster.suspensions),
                world,
                egress: Arc::clone(&self.egress),
                buffer_chunks: wasi.outgoing_body_buffer_chunks,
                chunk_size: wasi.outgoing_body_chunk_size,
            },
            limits: self.store_limits(),
            config: wasi
                .config
                .then(|| WasiConfigVariables::from_iter(wasi.config_vars.iter().cloned())),
            keyvalue: wasi.keyvalue.then(|| {
                WasiKeyValueCtxBuilder::new()
                    .in_memory_data(wasi.keyvalue_data.iter().cloned())
                    .build()
            }),
            computing: Computing::new(&self.turns, self.computing, Arc::clone(&roster.run)),
            roster,
        };
        let mut store = Store::new(engine, ctx);
        store.limiter(|ctx| &mut ctx.limits);
        if let Some(fuel) = self.flags.store().fuel {
            store.set_fuel(fuel)?;
        }
        if let Some(fuel) = wasi.hostcall_fuel {
            store.set_hostcall_fuel(fuel);
        }
        if let Some(most) = wasi.max_component_handles {
            store.set_max_component_handles(most);
        }
        store.set_epoch_deadline(1);
        store.epoch_deadline_callback(|mut store| {
            let stack: Vec<_> = store.async_call_stack()?.collect();
            let ctx = store.data_mut();
            let exchange = ctx.roster.find(&stack);
            Ok(ctx.computing.tick(exchange.as_deref())?)
        });
        Ok(store)
    }

    fn wasi_ctx(&self, number: u64) -> wasmtime::Result<WasiCtx> {
        let wasi = self.flags.wasi();
        let mut builder = WasiCtxBuilder::new();
        builder.envs(&self.env);
        builder.env("INSTANCE_ID", number.to_string());
        for (host, guest) in &self.dirs {
            builder
                .preopened_dir(host, guest, FsPerms::ReadWrite)
                .map_err(|error| error.context(format!("--dir {}", host.display())))?;
        }
        if let Some(directory) = &wasi.cwd {
            builder.initial_cwd(directory);
        }
        let number = self.logging_prefix.then_some(number);
        if wasi.inherit_stdout {
            builder.stdout(GuestLog::new(Target::Stdout, number));
        }
        if wasi.inherit_stderr {
            builder.stderr(GuestLog::new(Target::Stderr, number));
        }
        if let Some(bytes) = wasi.max_random_size {
            builder.max_random_size(bytes);
        }
        builder.allow_tcp(wasi.tcp.unwrap_or(wasi.inherit_network));
        builder.allow_udp(wasi.udp.unwrap_or(wasi.inherit_network));
        builder.allow_ip_name_lookup(wasi.allow_ip_name_lookup.unwrap_or(false));
        if wasi.inherit_network || wasi.tcp == Some(true) || wasi.udp == Some(true) {
            let policy = Arc::clone(&self.egress.policy);
            builder.socket_addr_check(move |address, usage| {
                let allowed = may_use_socket(&policy, address, usage);
                Box::pin(async move { allowed })
            });
        }
        Ok(builder.build())
    }

    fn store_limits(&self) -> StoreLimits {
        let flags = self.flags.store();
        let mut limits = StoreLimitsBuilder::new().memory_size(self.memory_bytes);
        if let Some(most) = flags.max_table_elements {
            limits = limits.table_elements(most);
        }
        if let Some(most) = flags.max_instances {
            limits = limits.instances(most);
        }
        if let Some(most) = flags.max_tables {
            limits = limits.tables(most);
        }
        if let Some(most) = flags.max_memories {
            limits = limits.memories(most);
        }
        limits
            .trap_on_grow_failure(flags.trap_on_grow_failure)
            .build()
    }
}

/// The data of a store.
pub struct Ctx {
    wasi: WasiCtx,
    table: ResourceTable,
    http: WasiHttpCtx,
    hooks: Hooks,
    limits: StoreLimits,
    config: Option<WasiConfigVariables>,
    keyvalue: Option<WasiKeyValueCtx>,
    computing: Computing,
    roster: Arc<Roster>,
}

impl Ctx {
    /// The exchange on whose behalf a p2 guest acts: it serves one at a time.
    pub fn serve(&mut self, exchange: Arc<Exchange>) {
        self.hooks.current = Some(exchange);
    }
}

impl WasiView for Ctx {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView {
            ctx: &mut self.wasi,
            table: &mut self.table,
        }
    }
}

impl WasiHttpView for Ctx {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        WasiHttpCtxView {
            ctx: &mut self.http,
            table: &mut self.table,
            hooks: &mut self.hooks,
        }
    }
}

struct Hooks {
    current: Option<Arc<Exchange>>,
    suspensions: Arc<Suspensions>,
    world: World,
    egress: Arc<Egress>,
    buffer_chunks: Option<usize>,
    chunk_size: Option<usize>,
}

type SendResult = Result<
    (
        http::Response<WasiBody>,
        Box<dyn Future<Output = Result<(), Error>> + Send>,
    ),
    Error,
>;

/// The connection's driver has a task of its own, so there is nothing left to
/// be polled.
fn with_io(result: Result<http::Response<WasiBody>, Error>) -> SendResult {
    let response = result?;
    Ok((response, Box::new(std::future::ready(Ok(())))))
}

impl WasiHttpHooks for Hooks {
    fn forbidden_header_filter(&mut self) -> ForbiddenHeaderFilter {
        let may_set_host = self.egress.may_set_host;
        Arc::new(move |name| {
            DEFAULT_FORBIDDEN_HEADERS.contains(name) && !(may_set_host && name == HOST)
        })
    }

    /// The client sets it.
    fn set_host_header(&mut self) -> bool {
        false
    }

    fn send_request(
        &mut self,
        request: http::Request<WasiBody>,
        options: Option<RequestOptions>,
        _: Box<dyn Future<Output = Result<(), Error>> + Send>,
    ) -> Box<dyn Future<Output = SendResult> + Send> {
        let Some(exchange) = self.current.clone() else {
            return Box::new(std::future::ready(Err(Error::InternalError(Some(
                "an outgoing request outside of any request".into(),
            )))));
        };
        let egress = Arc::clone(&self.egress);
        let written = self.suspensions.watch();
        match self.world {
            World::P3 => {
                let never = std::future::pending();
                let send = async move {
                    egress
                        .send(exchange, request, written, never, options)
                        .await
                };
                Box::new(async move { with_io(send.await) })
            }
            // A guest of 0.2 that drops the future of its response has not
            // cancelled its request; wasmtime would. It only wants no response.
            World::P2 => {
                let (wanted, dropped) = oneshot::channel::<()>();
                let abandoned = async move { _ = dropped.await };
                let task = tokio::spawn(async move {
                    egress
                        .send(exchange, request, written, abandoned, options)
                        .await
                });
                Box::new(async move {
                    let _wanted = wanted;
                    let lost = |_| Err(Error::InternalError(Some("the request was lost".into())));
                    with_io(task.await.unwrap_or_else(lost))
                })
            }
        }
    }

    fn p2_outgoing_body_buffer_chunks(&mut self) -> usize {
        self.buffer_chunks
            .unwrap_or(wasmtime_wasi_http::p2::DEFAULT_OUTGOING_BODY_BUFFER_CHUNKS)
    }

    fn p2_outgoing_body_chunk_size(&mut self) -> usize {
        self.chunk_size
            .unwrap_or(wasmtime_wasi_http::p2::DEFAULT_OUTGOING_BODY_CHUNK_SIZE)
    }
}

/// `wasi:http/client` for guests that share an instance: the call stack tells
/// on behalf of which exchange a request is made.
struct SharedClient;

impl HasData for SharedClient {
    type Data<'a> = WasiHttpCtxView<'a>;
}

impl client::HostWithStore<Ctx> for SharedClient {
    async fn send(
        accessor: &Accessor<Ctx, Self>,
        request: Resource<p3_types::Request>,
    ) -> Result<Resource<p3_types::Response>, wasmtime_wasi::TrappableError<p3_types::ErrorCode>>
    {
        accessor
            .with(|mut access| {
                let mut store = access.as_context_mut();
                let stack: Vec<_> = store.async_call_stack()?.collect();
                let ctx = store.data_mut();
                ctx.hooks.current = ctx.roster.find(&stack);
                wasmtime::error::Ok(())
            })
            .map_err(wasmtime_wasi::TrappableError::trap)?;
        // Reads `current` when it is first polled, before anything else runs.
        let accessor = accessor.with_getter::<WasiHttp>(Ctx::http);
        <WasiHttp as client::HostWithStore<Ctx>>::send(&accessor, request).await
    }
}

/// Links everything that a guest may import.
///
/// # Errors
/// Only on a mistake of ours: two definitions of one name.
pub fn linker(engine: &Engine, flags: &Flags) -> anyhow::Result<Linker<Ctx>> {
    let mut linker = Linker::new(engine);
    link(&mut linker, flags)
        .map_err(anyhow::Error::from)
        .context("cannot build the linker")?;
    Ok(linker)
}

fn link(linker: &mut Linker<Ctx>, flags: &Flags) -> wasmtime::Result<()> {
    let wasi = flags.wasi();
    let mut p2 = wasmtime_wasi::p2::bindings::LinkOptions::default();
    p2.network_error_code(wasi.network_error_code);
    wasmtime_wasi::p2::add_to_linker_with_options_async(linker, &p2)?;
    wasmtime_wasi_http::p2::add_only_http_to_linker_async(linker)?;
    if wasi.p3 {
        wasmtime_wasi::p3::add_to_linker(linker)?;
        p3_types::add_to_linker::<_, WasiHttp>(linker, Ctx::http)?;
        client::add_to_linker::<_, SharedClient>(linker, Ctx::http)?;
    }
    if wasi.config {
        wasmtime_wasi_config::add_to_linker(linker, |ctx: &mut Ctx| {
            WasiConfig::new(ctx.config.as_ref().expect("linked only where it is set"))
        })?;
    }
    if wasi.keyvalue {
        wasmtime_wasi_keyvalue::add_to_linker(linker, |ctx: &mut Ctx| {
            let keyvalue = ctx.keyvalue.as_ref().expect("linked only where it is set");
            WasiKeyValue::new(keyvalue, &mut ctx.table)
        })?;
    }
    mend_p2(linker)
}

/// Two functions of 0.2 that wasmtime answers with less than it could: it tells
/// every guest that the scheme is `http`, and no guest why a body broke.
fn mend_p2(linker: &mut Linker<Ctx>) -> wasmtime::Result<()> {
    linker.allow_shadowing(true);
    let mut types = linker.instance("wasi:http/types@0.2.12")?;
    types.func_wrap(
        "[method]incoming-request.scheme",
        |store, (_,): (Resource<HostIncomingRequest>,)| {
            let exchange = store.data().hooks.current.as_ref();
            let https = exchange.is_some_and(|exchange| exchange.https);
            Ok((Some(if https {
                p2_types::Scheme::Https
            } else {
                p2_types::Scheme::Http
            }),))
        },
    )?;
    types.func_wrap(
        "http-error-code",
        |store, (error,): (Resource<p2_types::IoError>,)| {
            let error = store.data().table.get(&error)?;
            let known = error.downcast_ref::<p2_types::ErrorCode>().cloned();
            Ok((known.or_else(|| error.downcast_ref().map(body_error_to_p2)),))
        },
    )?;
    linker.allow_shadowing(false);
    Ok(())
}

/// The errors in which a body may end.
fn body_error_to_p2(error: &Error) -> p2_types::ErrorCode {
    use p2_types::ErrorCode;
    match error {
        Error::ConnectionReadTimeout => ErrorCode::ConnectionReadTimeout,
        Error::ConnectionTerminated => ErrorCode::ConnectionTerminated,
        Error::HttpRequestBodySize(most) => ErrorCode::HttpRequestBodySize(*most),
        Error::HttpProtocolError | Error::Hyper(_) => ErrorCode::HttpProtocolError,
        // The rest is wasmtime's own.
        error => ErrorCode::InternalError(Some(error.to_string())),
    }
}

/// The guest's own sockets obey the egress policy. A socket is bound to no
/// address in particular before it connects; one that listens needs an open
/// policy, because no pattern names those who may connect.
fn may_use_socket(policy: &Policy, address: SocketAddr, usage: SocketAddrUse) -> bool {
    match usage {
        SocketAddrUse::TcpConnect | SocketAddrUse::UdpSend | SocketAddrUse::UdpReceive => {
            policy.check_socket(address).is_ok()
        }
        SocketAddrUse::TcpBind | SocketAddrUse::UdpBind => {
            policy.is_open() || (address.ip().is_unspecified() && address.port() == 0)
        }
        SocketAddrUse::TcpListen | SocketAddrUse::TcpAccept => policy.is_open(),
    }
}
