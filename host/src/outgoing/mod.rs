//! The outgoing client: what a guest's own requests go through.
//!
//! One client per app. A request passes the egress policy, takes an idle
//! connection to its destination or opens one, and is sent; its response
//! streams back under a deadline for every wait. A connection whose response
//! was read to the end returns to the pool.
//!
//! Nothing here knows wasm: `wasi` hands requests in and turns [`Error`] into
//! the guest's `error-code`.

mod address;
mod body;
mod connect;
pub mod destination;
pub mod policy;
mod pool;

pub use body::{Interrupted, Pooled, Watched};

use crate::exchange::Exchange;
use crate::headers::remove_hop_by_hop;
use crate::limits::Limits;
use bytes::Bytes;
use connect::Connector;
use destination::Destination;
use http::header::{CONNECTION, HeaderValue, TE};
use policy::Policy;
use pool::{Lease, Pool};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Why a request to an upstream failed.
#[derive(Debug)]
pub enum Error {
    /// The URL is none that can be requested.
    Invalid(String),
    /// The egress policy forbids the destination.
    Denied(String),
    Dns(String),
    Refused(std::io::Error),
    Unreachable(std::io::Error),
    ConnectTimeout,
    TlsCertificate(String),
    TlsProtocol(String),
    FirstByteTimeout,
    BetweenBytesTimeout,
    /// The upstream closed the connection before its response was complete.
    Terminated(String),
    /// What the upstream sent is not HTTP.
    Protocol(String),
    /// The guest's own body ended in an error, so the request cannot be
    /// completed.
    RequestBody(String),
    /// The exchange that this request was made for is over.
    Cancelled,
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::Invalid(reason) => write!(f, "invalid URL: {reason}"),
            Error::Denied(reason) => f.write_str(reason),
            Error::Dns(reason) => write!(f, "name not resolved: {reason}"),
            Error::Refused(error) => write!(f, "connection refused: {error}"),
            Error::Unreachable(error) => write!(f, "connection failed: {error}"),
            Error::ConnectTimeout => f.write_str("no connection in time"),
            Error::TlsCertificate(reason) => write!(f, "certificate not accepted: {reason}"),
            Error::TlsProtocol(reason) => write!(f, "TLS failed: {reason}"),
            Error::FirstByteTimeout => f.write_str("no response in time"),
            Error::BetweenBytesTimeout => f.write_str("the response stopped half-way"),
            Error::Terminated(reason) => write!(f, "connection closed early: {reason}"),
            Error::Protocol(reason) => write!(f, "not HTTP: {reason}"),
            Error::RequestBody(reason) => write!(f, "request body failed: {reason}"),
            Error::Cancelled => f.write_str("the client of this request has gone"),
        }
    }
}

impl std::error::Error for Error {}

impl From<Interrupted> for Error {
    fn from(interrupted: Interrupted) -> Self {
        match interrupted {
            Interrupted::BetweenBytes => Error::BetweenBytesTimeout,
            Interrupted::Cancelled => Error::Cancelled,
        }
    }
}

/// The deadlines of one request: the app's, shortened by the guest's.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    pub connect: Duration,
    pub first_byte: Duration,
    pub between_bytes: Duration,
}

impl Deadlines {
    pub fn new(limits: &Limits) -> Self {
        Self {
            connect: limits.connect,
            first_byte: limits.first_byte,
            between_bytes: limits.between_bytes,
        }
    }

    /// A guest may ask for less, never for more.
    pub fn shortened(
        self,
        connect: Option<Duration>,
        first_byte: Option<Duration>,
        between_bytes: Option<Duration>,
    ) -> Self {
        let least = |ours: Duration, theirs: Option<Duration>| theirs.map_or(ours, |t| t.min(ours));
        Self {
            connect: least(self.connect, connect),
            first_byte: least(self.first_byte, first_byte),
            between_bytes: least(self.between_bytes, between_bytes),
        }
    }
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What a guest's request body has to be.
pub trait RequestBody:
    http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static
{
}

impl<B> RequestBody for B where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static
{
}

pub struct Client<B> {
    policy: Arc<Policy>,
    connector: Connector,
    pool: Arc<Pool<B>>,
}

impl<B: RequestBody> Client<B> {
    pub fn new(policy: Arc<Policy>, limits: &Limits) -> Self {
        Self {
            connector: Connector::new(Arc::clone(&policy)),
            policy,
            pool: Pool::new(limits.upstream_idle, limits.upstream_idle_connections),
        }
    }

    /// Sends `request`, whose URI is absolute and whose `Host` is set.
    ///
    /// # Errors
    /// See [`Error`]. After the response's head, errors come from its body.
    pub async fn send(
        &self,
        exchange: Arc<Exchange>,
        request: http::Request<B>,
        deadlines: Deadlines,
    ) -> Result<http::Response<Watched<Pooled<B>>>, Error> {
        let destination = destination(request.uri())?;
        self.policy
            .check_name(&destination)
            .map_err(|denied| Error::Denied(denied.to_string()))?;
        let mut request = origin_form(request)?;
        if request.headers().contains_key(TE) {
            // RFC 9110 section 10.1.4: whoever sends TE says that it is meant
            // for this hop.
            let te = HeaderValue::from_static("te");
            request.headers_mut().insert(CONNECTION, te);
        }
        tokio::select! {
            biased;
            () = exchange.cancelled() => Err(Error::Cancelled),
            response = self.exchange(&destination, request, deadlines) => {
                let (mut response, lease) = response?;
                remove_hop_by_hop(response.headers_mut());
                Ok(response.map(|incoming| {
                    let body = Pooled::new(incoming, lease);
                    Watched::new(body, Arc::clone(&exchange), deadlines.between_bytes)
                }))
            }
        }
    }

    async fn exchange(
        &self,
        destination: &Destination,
        mut request: http::Request<B>,
        deadlines: Deadlines,
    ) -> Result<(http::Response<hyper::body::Incoming>, Lease<B>), Error> {
        loop {
            let mut lease = match self.pool.take(destination) {
                Some(lease) => lease,
                None => {
                    let sender = within(deadlines.connect, self.connector.connect(destination))
                        .await
                        .ok_or(Error::ConnectTimeout)??;
                    self.pool.lease(destination, sender)
                }
            };
            let response = within(deadlines.first_byte, lease.send(request));
            match response.await.ok_or(Error::FirstByteTimeout)? {
                Ok(response) => return Ok((response, lease)),
                // An idle connection that the upstream closed meanwhile: the
                // request has not left, so it can be sent again in full.
                Err((_, Some(unsent))) if lease.is_reused() => request = unsent,
                Err((error, _)) => return Err(classify(&error)),
            }
        }
    }
}

/// `None` when the time is up. No time at all is up at once, where tokio's
/// timer would round it up to a millisecond.
async fn within<T>(time: Duration, future: impl Future<Output = T>) -> Option<T> {
    if time.is_zero() {
        return None;
    }
    timeout(time, future).await.ok()
}

fn destination(uri: &http::Uri) -> Result<Destination, Error> {
    let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
        return Err(Error::Invalid(format!("{uri} names no host")));
    };
    Destination::parse(scheme, authority.as_str()).map_err(|bad| Error::Invalid(bad.to_string()))
}

/// HTTP/1.1 sends path and query alone, RFC 9112 section 3.2.1.
fn origin_form<B>(mut request: http::Request<B>) -> Result<http::Request<B>, Error> {
    let path = request
        .uri()
        .path_and_query()
        .map_or("/", |path| path.as_str());
    let target = if path.starts_with('?') {
        format!("/{path}")
    } else {
        path.to_owned()
    };
    *request.uri_mut() = target
        .parse()
        .map_err(|error| Error::Invalid(format!("{target}: {error}")))?;
    *request.version_mut() = http::Version::HTTP_11;
    Ok(request)
}

fn classify(error: &hyper::Error) -> Error {
    let cause = std::error::Error::source(error);
    let text = cause.map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"));
    if error.is_user() {
        Error::RequestBody(text)
    } else if error.is_parse() || error.is_parse_too_large() {
        Error::Protocol(text)
    } else {
        Error::Terminated(text)
    }
}
