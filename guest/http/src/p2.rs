//! wasi:http 0.2: the guest itself waits, for one thing or for the first of
//! several. [`run`] turns that into tasks, so that a body can go up while an
//! answer comes down.

use crate::Fields;
use crate::message::{self, Body, Outgoing, Response};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use wasip2::clocks::monotonic_clock;
use wasip2::io::poll::{Pollable, poll};
use wasip2::io::streams::{InputStream, OutputStream, StreamError};

pub use wasip2 as wasi;
pub use wasip2::http::types as http;
pub use wasip2::http::types::OutgoingRequest;

/// Makes a guest's answer the component's, and returns when everything that
/// the guest spawned has ended. A guest that fails gives no answer.
pub fn serve<F>(
    request: http::IncomingRequest,
    outparam: http::ResponseOutparam,
    answer: impl FnOnce(Request) -> F + 'static,
) where
    F: Future<Output = Result<Response, http::ErrorCode>>,
{
    run(async move {
        if let Ok(response) = answer(Request(request)).await {
            respond(response, outparam).await;
        }
    });
}

async fn respond(response: Response, outparam: http::ResponseOutparam) {
    let Response {
        status,
        headers,
        body,
    } = response;
    let response = http::OutgoingResponse::new(message::headers(headers, &body));
    if response.set_status_code(status).is_err() {
        return;
    }
    let sending = Sending::start(body, || response.body());
    http::ResponseOutparam::set(outparam, Ok(response));
    if let Some(sending) = sending {
        sending.end().await;
    }
}

pub struct Request(http::IncomingRequest);

impl Request {
    pub fn method(&self) -> http::Method {
        self.0.method()
    }

    pub fn scheme(&self) -> Option<http::Scheme> {
        self.0.scheme()
    }

    pub fn authority(&self) -> Option<String> {
        self.0.authority()
    }

    /// Path and query as they were sent.
    pub fn target(&self) -> String {
        self.0.path_with_query().unwrap_or_default()
    }

    pub fn headers(&self) -> Fields {
        self.0.headers().entries()
    }

    pub fn into_body(self) -> IncomingBody {
        IncomingBody::new(self.0.consume())
    }
}

/// The answer to an outgoing request.
pub struct Incoming(http::IncomingResponse);

impl Incoming {
    pub fn status(&self) -> u16 {
        self.0.status()
    }

    pub fn headers(&self) -> Fields {
        self.0.headers().entries()
    }

    pub fn into_body(self) -> IncomingBody {
        IncomingBody::new(self.0.consume())
    }
}

/// The stream is the body's child, so it comes first: fields are dropped in order.
pub struct IncomingBody {
    contents: InputStream,
    body: http::IncomingBody,
}

impl IncomingBody {
    fn new(body: Result<http::IncomingBody, ()>) -> IncomingBody {
        let body = body.expect("a message is consumed once, since that takes it");
        let contents = body
            .stream()
            .expect("this is the only place that takes the stream");
        IncomingBody { contents, body }
    }

    /// The next piece, at most `limit` bytes of it. `None` at the end.
    pub async fn read(&mut self, limit: usize) -> Result<Option<Vec<u8>>, http::ErrorCode> {
        loop {
            match self.contents.read(limit as u64) {
                Ok(bytes) if bytes.is_empty() => wait(self.contents.subscribe()).await,
                Ok(bytes) => return Ok(Some(bytes)),
                Err(StreamError::Closed) => return Ok(None),
                Err(error) => return Err(code(error)),
            }
        }
    }

    /// What follows the body, once it has been read to its end.
    pub async fn trailers(self) -> Result<Fields, http::ErrorCode> {
        Ok(self
            .end()
            .await?
            .map(|trailers| trailers.entries())
            .unwrap_or_default())
    }

    async fn end(self) -> Result<Option<http::Trailers>, http::ErrorCode> {
        drop(self.contents);
        let trailers = http::IncomingBody::finish(self.body);
        wait(trailers.subscribe()).await;
        match trailers.get() {
            Some(Ok(result)) => result,
            Some(Err(())) | None => Err(http::ErrorCode::InternalError(None)),
        }
    }
}

pub struct Writer(OutputStream);

impl Writer {
    /// Returns when the host has taken every byte.
    pub async fn write(&mut self, bytes: Vec<u8>) -> Result<(), http::ErrorCode> {
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let taken = self.write_some(rest)?;
            if taken == 0 {
                wait(self.0.subscribe()).await;
            }
            rest = &rest[taken..];
        }
        self.0.flush().map_err(code)
    }

    /// Writes as much as the host takes without waiting.
    fn write_some(&mut self, bytes: &[u8]) -> Result<usize, http::ErrorCode> {
        let budget = self.0.check_write().map_err(code)?;
        let length = bytes
            .len()
            .min(usize::try_from(budget).unwrap_or(usize::MAX));
        if length > 0 {
            self.0.write(&bytes[..length]).map_err(code)?;
        }
        Ok(length)
    }

    async fn full(mut self, bytes: Vec<u8>) -> Result<Option<http::Trailers>, http::ErrorCode> {
        self.write(bytes).await?;
        Ok(None)
    }

    async fn relay(
        mut self,
        source: IncomingBody,
    ) -> Result<Option<http::Trailers>, http::ErrorCode> {
        self.splice(&source.contents).await?;
        source.end().await
    }

    /// Moves what arrives, until the source ends, without taking it in.
    async fn splice(&mut self, source: &InputStream) -> Result<(), http::ErrorCode> {
        loop {
            match self.0.splice(source, u64::MAX) {
                Ok(0) if self.0.check_write().map_err(code)? == 0 => {
                    wait(self.0.subscribe()).await;
                }
                Ok(0) => {
                    self.0.flush().map_err(code)?;
                    wait(source.subscribe()).await;
                }
                Ok(_) => {}
                // One of the two has ended; ours says so itself.
                Err(StreamError::Closed) => return self.0.check_write().map(drop).map_err(code),
                Err(error) => return Err(code(error)),
            }
        }
    }
}

/// A body on its way out.
struct Sending {
    writer: Writer,
    body: http::OutgoingBody,
    contents: Body,
}

impl Sending {
    /// Hands over what the host takes at once, so that a short message can
    /// leave in one piece. `None` when nothing remains to be done.
    fn start(
        mut contents: Body,
        body: impl FnOnce() -> Result<http::OutgoingBody, ()>,
    ) -> Option<Sending> {
        if matches!(contents, Body::Empty) {
            return None;
        }
        let body = body().expect("a message gives out its body once");
        let mut writer = Writer(body.write().expect("a body gives out its stream once"));
        if let Body::Full(bytes) = &mut contents {
            // After an error nobody is there to read the rest.
            let taken = writer.write_some(bytes).unwrap_or(bytes.len());
            bytes.drain(..taken);
            if bytes.is_empty() {
                drop(writer);
                finish(body, None);
                return None;
            }
        }
        Some(Sending {
            writer,
            body,
            contents,
        })
    }

    /// Writes the rest. A body that is dropped, not finished, breaks off.
    async fn end(self) {
        let Sending {
            writer,
            body,
            contents,
        } = self;
        let trailers = match contents {
            Body::Empty => writer.full(Vec::new()).await,
            Body::Full(bytes) => writer.full(bytes).await,
            Body::Relay(source) => writer.relay(source).await,
            Body::Stream(produce) => produce(writer).await.map(message::trailers),
        };
        if let Ok(trailers) = trailers {
            finish(body, trailers);
        }
    }
}

/// Fails only where the length that was announced is another; then the host
/// breaks the message off, and there is nobody to tell.
fn finish(body: http::OutgoingBody, trailers: Option<http::Trailers>) {
    let _ = http::OutgoingBody::finish(body, trailers);
}

/// Sends a request and waits for the head of its answer.
pub async fn send(outgoing: Outgoing) -> Result<Incoming, http::ErrorCode> {
    let Outgoing {
        method,
        url,
        headers,
        body,
        timeouts,
    } = outgoing;
    let request = OutgoingRequest::new(message::headers(headers, &body));
    message::address(&request, &method, &url)?;
    let sending = Sending::start(body, || request.body());
    let response = wasip2::http::outgoing_handler::handle(request, timeouts.options())?;
    if let Some(sending) = sending {
        spawn(sending.end());
    }
    wait(response.subscribe()).await;
    match response.get() {
        Some(Ok(result)) => result.map(Incoming),
        Some(Err(())) | None => Err(http::ErrorCode::InternalError(None)),
    }
}

/// What a broken stream says about HTTP. One that the other side has closed
/// says nothing.
fn code(error: StreamError) -> http::ErrorCode {
    match error {
        StreamError::Closed => http::ErrorCode::ConnectionTerminated,
        StreamError::LastOperationFailed(error) => http::http_error_code(&error)
            .unwrap_or_else(|| http::ErrorCode::InternalError(Some(error.to_debug_string()))),
    }
}

pub fn header_error(error: &http::HeaderError) -> &'static str {
    match error {
        http::HeaderError::InvalidSyntax => "invalid-syntax",
        http::HeaderError::Forbidden => "forbidden",
        http::HeaderError::Immutable => "immutable",
    }
}

pub async fn sleep(time: Duration) {
    wait(monotonic_clock::subscribe_duration(time.as_nanos() as u64)).await;
}

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// Something that a task waits for.
struct Wait {
    pollable: Pollable,
    over: Cell<bool>,
}

thread_local! {
    /// Tasks that have not been polled yet.
    static SPAWNED: RefCell<Vec<Task>> = const { RefCell::new(Vec::new()) };
    /// Weak, so that a wait ends with the future that wanted it: a pollable
    /// must be gone before the stream that it belongs to.
    static WAITS: RefCell<Vec<Weak<Wait>>> = const { RefCell::new(Vec::new()) };
}

/// Adds a task to those that keep the component's call alive.
pub fn spawn(task: impl Future<Output = ()> + 'static) {
    SPAWNED.with_borrow_mut(|spawned| spawned.push(Box::pin(task)));
}

async fn wait(pollable: Pollable) {
    let wait = Rc::new(Wait {
        pollable,
        over: Cell::new(false),
    });
    WAITS.with_borrow_mut(|waits| waits.push(Rc::downgrade(&wait)));
    poll_fn(|_| {
        if wait.over.get() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}

/// Runs `main` and all that it spawns. There are two or three tasks at most, so
/// each turn polls them all.
fn run(main: impl Future<Output = ()> + 'static) {
    let woken = Arc::new(Woken(AtomicBool::new(false)));
    let waker = Waker::from(woken.clone());
    let mut context = Context::from_waker(&waker);
    let mut tasks: Vec<Task> = vec![Box::pin(main)];
    while !tasks.is_empty() {
        tasks.retain_mut(|task| task.as_mut().poll(&mut context).is_pending());
        let spawned = SPAWNED.take();
        if spawned.is_empty() && !tasks.is_empty() && !woken.0.swap(false, Ordering::Relaxed) {
            block();
        }
        tasks.extend(spawned);
    }
}

/// Suspends the component until something that a task waits for has happened.
fn block() {
    let waits: Vec<Rc<Wait>> = WAITS.with_borrow_mut(|waits| {
        waits.retain(|wait| wait.upgrade().is_some_and(|wait| !wait.over.get()));
        waits.iter().filter_map(Weak::upgrade).collect()
    });
    if let [wait] = &waits[..] {
        wait.pollable.block();
        wait.over.set(true);
        return;
    }
    let pollables: Vec<&Pollable> = waits.iter().map(|wait| &wait.pollable).collect();
    for index in poll(&pollables) {
        waits[index as usize].over.set(true);
    }
}

/// Set by a task that wants its next turn without waiting.
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}
