//! Instances of one version: made for a request or reused, shared by several
//! requests or not, ended when nobody needs them.
//!
//! [`Instances::call`] takes a request to a guest and comes back with its
//! answer or with the reason why there is none. Admission is in front of this;
//! what happens to the answer's body is behind it.

use crate::cpu::TooMuch;
use crate::exchange::Exchange;
use crate::outcome::{Failure, Kind};
use crate::roster::{Need, Roster};
use crate::wasi::{Ctx, Rights};
use crate::world::World;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::time::Sleep;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use wasmtime::component::GuestTaskId;
use wasmtime::{Engine, PoolConcurrencyLimitError, Store, StoreContextMut, Trap, WasmBacktrace};
use wasmtime_wasi::I32Exit;
use wasmtime_wasi_http::handler::{
    HandlerState, Instance, InstantiationError, ProxyHandler, ProxyPre, ShouldAccept,
    TrapOrPanicError, WorkerExpiration, WorkerState, WorkerStatus,
};
use wasmtime_wasi_http::{WasiBody, WasiHttpView};

/// For this long after a shared instance was lost, a version shares none.
const UNSHARED_AFTER_LOSS: Duration = Duration::from_secs(60);

/// How long to wait for the reason of a missing answer. The worker gives it in
/// its next step; the bound is there for a mistake of ours.
const REASON_WAIT: Duration = Duration::from_secs(10);

/// How often and by how many an instance is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reuse {
    /// Requests that one instance serves before it is dropped.
    pub total: usize,
    /// Requests that it serves at once.
    pub concurrent: usize,
    /// How long it waits for the next one.
    pub idle: Duration,
}

/// Every instance of a process, so that a drain can wait for them.
#[derive(Default)]
pub struct Workers {
    alive: AtomicUsize,
    fewer: Notify,
    next_number: AtomicU64,
    /// Once cancelled, an instance that has come to rest goes away.
    draining: CancellationToken,
}

impl Workers {
    /// Waits until every instance is gone, those with work after their answer
    /// included.
    pub async fn drain(&self) {
        self.draining.cancel();
        loop {
            let mut fewer = std::pin::pin!(self.fewer.notified());
            fewer.as_mut().enable();
            if self.alive() == 0 {
                return;
            }
            fewer.await;
        }
    }

    pub fn alive(&self) -> usize {
        self.alive.load(Ordering::Acquire)
    }
}

/// Counts one instance.
struct Alive(Arc<Workers>);

impl Alive {
    fn new(workers: &Arc<Workers>) -> Self {
        workers.alive.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(workers))
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.alive.fetch_sub(1, Ordering::AcqRel);
        self.0.fewer.notify_waiters();
    }
}

/// What every instance of a version is made from.
pub struct Blueprint {
    pub app: Arc<str>,
    pub engine: Engine,
    pub pre: ProxyPre<Ctx>,
    pub rights: Rights,
    pub reuse: Reuse,
    pub background: Duration,
    pub workers: Arc<Workers>,
}

pub struct Instances {
    blueprint: Arc<Blueprint>,
    shared: ProxyHandler<Factory>,
    /// One request each, for those that must not share.
    alone: ProxyHandler<Factory>,
    started: Instant,
    /// Milliseconds after `started` until which nothing is shared.
    unshared_until_ms: Arc<AtomicU64>,
}

impl Instances {
    pub fn new(blueprint: Blueprint) -> Self {
        let blueprint = Arc::new(blueprint);
        let alone = Reuse {
            total: 1,
            concurrent: 1,
            ..blueprint.reuse
        };
        let handler = |reuse| {
            ProxyHandler::new(Factory {
                blueprint: Arc::clone(&blueprint),
                reuse,
            })
        };
        Self {
            shared: handler(blueprint.reuse),
            alone: handler(alone),
            blueprint,
            started: Instant::now(),
            unshared_until_ms: Arc::default(),
        }
    }

    /// Calls the guest. A request that lost its instance to another one, and
    /// had neither a body nor an answer, is run once more on its own.
    pub async fn call(
        &self,
        exchange: &Arc<Exchange>,
        request: http::Request<WasiBody>,
    ) -> Result<http::Response<WasiBody>, Failure> {
        if !self.may_share() {
            return self.call_in(&self.alone, exchange, request).await;
        }
        let again = copy_without_body(&request);
        let failure = match self.call_in(&self.shared, exchange, request).await {
            Err(failure) if failure.kind == Kind::InstanceLost => failure,
            other => return other,
        };
        self.stop_sharing();
        let Some(request) = again else {
            return Err(failure);
        };
        tracing::info!(
            "request {} app {}: run again in an instance of its own",
            exchange.id,
            exchange.app
        );
        exchange.forget_failure();
        self.call_in(&self.alone, exchange, request).await
    }

    /// Starts and drops one instance, to find out at once what would else be
    /// found by the first request.
    pub async fn try_one(&self) -> wasmtime::Result<()> {
        let factory = self.alone.state();
        factory.instantiate().await.map(drop)
    }

    async fn call_in(
        &self,
        handler: &ProxyHandler<Factory>,
        exchange: &Arc<Exchange>,
        request: http::Request<WasiBody>,
    ) -> Result<http::Response<WasiBody>, Failure> {
        match handler.handle(Arc::clone(exchange), request).await {
            Ok(response) => Ok(response),
            Err(error) => Err(reason(exchange, &error).await),
        }
    }

    fn may_share(&self) -> bool {
        self.blueprint.reuse.concurrent == 1
            || self.now_ms() >= self.unshared_until_ms.load(Ordering::Relaxed)
    }

    fn stop_sharing(&self) {
        let until = self.now_ms() + UNSHARED_AFTER_LOSS.as_millis() as u64;
        let before = self.unshared_until_ms.swap(until, Ordering::Relaxed);
        if before < self.now_ms() {
            tracing::warn!(
                "app {}: a shared instance was lost; requests share none for {} s",
                self.blueprint.app,
                UNSHARED_AFTER_LOSS.as_secs()
            );
        }
    }

    fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }
}

/// A copy to run once more, where that is safe: nothing of a body can have
/// been read.
fn copy_without_body(request: &http::Request<WasiBody>) -> Option<http::Request<WasiBody>> {
    use http_body::Body as _;
    use http_body_util::{BodyExt as _, Empty};
    request.body().is_end_stream().then(|| {
        let mut copy = http::Request::new(Empty::new().map_err(Into::into).boxed_unsync());
        *copy.method_mut() = request.method().clone();
        *copy.uri_mut() = request.uri().clone();
        *copy.version_mut() = request.version();
        *copy.headers_mut() = request.headers().clone();
        copy
    })
}

/// Why `handle` came back with an error.
async fn reason(exchange: &Exchange, error: &wasmtime::Error) -> Failure {
    if let Some(instantiation) = error.downcast_ref::<InstantiationError<Arc<Exchange>>>() {
        let cause = &instantiation.error;
        let kind = if cause.is::<PoolConcurrencyLimitError>() {
            Kind::NoInstance
        } else {
            Kind::Instantiation
        };
        return Failure::new(kind, format!("{cause:#}"));
    }
    if is_guest_error(error) {
        return Failure::new(
            Kind::NoAnswer,
            format!("the guest returned an error: {error:#}"),
        );
    }
    // A lost instance and a guest that returned without an answer look alike
    // from here; the worker knows.
    _ = tokio::time::timeout(REASON_WAIT, exchange.settled()).await;
    match exchange.failure() {
        Some(failure) => Failure::clone(&failure),
        None if error.is::<TrapOrPanicError>() => Failure::new(Kind::Trap, "the instance is gone"),
        None => Failure::new(Kind::NoAnswer, "the guest returned without an answer"),
    }
}

fn is_guest_error(error: &wasmtime::Error) -> bool {
    use wasmtime_wasi_http::{p2, p3};
    error.is::<p2::bindings::http::types::ErrorCode>()
        || error.is::<p3::bindings::http::types::ErrorCode>()
}

/// Makes instances for a [`ProxyHandler`].
struct Factory {
    blueprint: Arc<Blueprint>,
    reuse: Reuse,
}

impl HandlerState for Factory {
    type StoreData = Ctx;
    type WorkerExpiration = Expiration;
    type WorkerState = Worker;

    async fn instantiate(&self) -> wasmtime::Result<Instance<Ctx, Expiration, Worker>> {
        let Blueprint {
            engine,
            pre,
            rights,
            workers,
            background,
            ..
        } = &*self.blueprint;
        let alive = Alive::new(workers);
        let number = workers.next_number.fetch_add(1, Ordering::Relaxed);
        let roster = Arc::<Roster>::default();
        let world = match pre {
            ProxyPre::P2(_) => World::P2,
            ProxyPre::P3(_) => World::P3,
        };
        let mut store = rights.store(engine, world, number, Arc::clone(&roster))?;
        let proxy = pre.instantiate_async(&mut store).await?;
        Ok(Instance {
            store,
            proxy,
            view: Ctx::http,
            expiration: Expiration {
                roster: Arc::clone(&roster),
                idle: self.reuse.idle,
                background: *background,
                timer: None,
                draining: Box::pin(workers.draining.clone().cancelled_owned()),
            },
            state: Worker {
                roster,
                world,
                reuse: self.reuse,
                background: *background,
                app: Arc::clone(&self.blueprint.app),
                _alive: alive,
            },
        })
    }
}

/// The state of one instance's task.
struct Worker {
    roster: Arc<Roster>,
    world: World,
    reuse: Reuse,
    background: Duration,
    app: Arc<str>,
    _alive: Alive,
}

impl WorkerState for Worker {
    type StoreData = Ctx;
    type RequestData = Arc<Exchange>;

    fn should_accept_request(&self, concurrent: usize, total: usize) -> ShouldAccept {
        if total >= self.reuse.total {
            ShouldAccept::Never
        } else if concurrent >= self.reuse.concurrent {
            ShouldAccept::No
        } else {
            ShouldAccept::Yes
        }
    }

    fn on_request_start(
        &self,
        mut store: StoreContextMut<'_, Ctx>,
        exchange: Arc<Exchange>,
        task: GuestTaskId,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + Sync>> {
        store.data_mut().serve(Arc::clone(&exchange));
        if self.world == World::P2 {
            // One at a time: whoever came before is through.
            self.roster.clear();
        }
        self.roster.add(task, exchange, self.background);
        // Deadlines are kept by `dispatch`, and `Expiration` ends what nobody
        // waits for; to expire a request here would retire an instance that
        // others share.
        Box::pin(std::future::pending())
    }

    fn drop(&self, store: Store<Ctx>, result: wasmtime::Result<()>) {
        if let Err(error) = result {
            self.lost(&error);
            self.roster.cancel_finished();
        }
        self.roster.settle();
        // The senders of unfinished bodies go away with the store; their
        // exchanges have been told first that this is not a proper end.
        drop(store);
    }
}

impl Worker {
    fn lost(&self, error: &wasmtime::Error) {
        let lost = self.roster.unfinished();
        let wanted: Vec<_> = lost.iter().filter(|e| !e.is_cancelled()).collect();
        let mut failure = trap(error);
        let culprit_is_known = lost.len() == 1 && !self.roster.has_finished();
        if !culprit_is_known {
            failure.kind = Kind::InstanceLost;
        }
        if lost.is_empty() {
            let Failure { cause, .. } = &failure;
            tracing::error!("app {}: work after an answer was ended: {cause}", self.app);
        } else if wanted.len() > 1 {
            tracing::error!(
                "app {}: an instance is lost with {} unfinished requests: {failure}",
                self.app,
                wanted.len()
            );
            failure.backtrace = None;
        }
        let failure = Arc::new(failure);
        for exchange in lost {
            exchange.fail(Arc::clone(&failure));
        }
    }
}

/// The cause and the guest's stack, out of an error of wasmtime's.
fn trap(error: &wasmtime::Error) -> Failure {
    if let Some(too_much) = error.downcast_ref::<TooMuch>() {
        return Failure::new(Kind::Computing, too_much);
    }
    let cause = if let Some(trap) = error.downcast_ref::<Trap>() {
        format!("wasm trap: {trap}").replace("wasm trap: wasm trap:", "wasm trap:")
    } else if let Some(I32Exit(code)) = error.downcast_ref::<I32Exit>() {
        format!("the guest called exit({code})")
    } else {
        error.root_cause().to_string()
    };
    let mut failure = Failure::new(Kind::Trap, cause);
    failure.backtrace = error.downcast_ref::<WasmBacktrace>().map(|backtrace| {
        // Below a title of wasmtime's.
        let text = backtrace.to_string();
        text.split_once('\n')
            .map_or_else(String::new, |(_, frames)| frames.to_owned())
    });
    failure
}

/// Says when an instance is to go.
pub struct Expiration {
    roster: Arc<Roster>,
    idle: Duration,
    background: Duration,
    timer: Option<Pin<Box<Sleep>>>,
    draining: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl WorkerExpiration for Expiration {
    fn poll(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        status: WorkerStatus,
        start: Instant,
    ) -> Poll<()> {
        // Called exactly when the guest can go no further for now.
        self.roster.suspensions.add();
        self.roster.run.end();
        match status {
            WorkerStatus::Idle => {
                self.roster.clear();
                if self.draining.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(());
                }
                let idle = self.idle;
                self.poll_until(cx, start.checked_add(idle))
            }
            WorkerStatus::Requests | WorkerStatus::PostReturn => {
                match self.roster.need(self.background, cx.waker()) {
                    Need::Live => Poll::Pending,
                    Need::Background(left) => self.poll_until(cx, Instant::now().checked_add(left)),
                    Need::None => Poll::Ready(()),
                }
            }
        }
    }
}

impl Expiration {
    /// `None` is a time too far away to be told.
    fn poll_until(&mut self, cx: &mut Context<'_>, deadline: Option<Instant>) -> Poll<()> {
        let Some(deadline) = deadline.map(tokio::time::Instant::from_std) else {
            return Poll::Pending;
        };
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        if timer.deadline() != deadline {
            timer.as_mut().reset(deadline);
        }
        timer.as_mut().poll(cx)
    }
}
