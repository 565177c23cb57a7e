//! wasi:http 0.3: the host's streams and futures are the language's, so this is
//! mostly a change of names. A guest's task lives on after its answer, until
//! everything that it spawned has ended.

use crate::Fields;
use crate::message::{self, Body, Outgoing, Response};
use std::time::Duration;
use wasip3::wit_bindgen::{FutureReader, StreamReader, StreamResult, StreamWriter};
use wasip3::{wit_future, wit_stream};

pub use wasip3::http::types as http;
pub use wasip3::http::types::Request as OutgoingRequest;
pub use wasip3::{self as wasi, spawn_local as spawn};

type Received = FutureReader<Result<(), http::ErrorCode>>;
type Trailers = FutureReader<Result<Option<http::Trailers>, http::ErrorCode>>;

/// Makes a guest's answer the component's.
pub async fn serve<F>(
    request: http::Request,
    answer: impl FnOnce(Request) -> F,
) -> Result<http::Response, http::ErrorCode>
where
    F: Future<Output = Result<Response, http::ErrorCode>>,
{
    let Response {
        status,
        headers,
        body,
    } = answer(Request(request)).await?;
    let headers = message::headers(headers, &body);
    let (contents, trailers) = lower(body);
    let (response, _sent) = http::Response::new(headers, contents, trailers);
    let invalid = |()| http::ErrorCode::InternalError(Some(format!("status {status}")));
    response.set_status_code(status).map_err(invalid)?;
    Ok(response)
}

pub struct Request(http::Request);

impl Request {
    pub fn method(&self) -> http::Method {
        self.0.get_method()
    }

    pub fn scheme(&self) -> Option<http::Scheme> {
        self.0.get_scheme()
    }

    pub fn authority(&self) -> Option<String> {
        self.0.get_authority()
    }

    /// Path and query as they were sent.
    pub fn target(&self) -> String {
        self.0.get_path_with_query().unwrap_or_default()
    }

    pub fn headers(&self) -> Fields {
        self.0.get_headers().copy_all()
    }

    pub fn into_body(self) -> IncomingBody {
        IncomingBody::new(|received| http::Request::consume_body(self.0, received))
    }
}

/// The answer to an outgoing request.
pub struct Incoming(http::Response);

impl Incoming {
    pub fn status(&self) -> u16 {
        self.0.get_status_code()
    }

    pub fn headers(&self) -> Fields {
        self.0.get_headers().copy_all()
    }

    pub fn into_body(self) -> IncomingBody {
        IncomingBody::new(|received| http::Response::consume_body(self.0, received))
    }
}

pub struct IncomingBody {
    contents: StreamReader<u8>,
    trailers: Trailers,
}

impl IncomingBody {
    fn new(consume: impl FnOnce(Received) -> (StreamReader<u8>, Trailers)) -> IncomingBody {
        // We have no failure to report back, so the host gets its word at once.
        let (writer, received) = wit_future::new(|| Ok(()));
        let (contents, trailers) = consume(received);
        drop(writer);
        IncomingBody { contents, trailers }
    }

    /// The next piece, at most `limit` bytes of it. `None` at the end, be the
    /// body complete or not: [`IncomingBody::trailers`] tells.
    pub async fn read(&mut self, limit: usize) -> Result<Option<Vec<u8>>, http::ErrorCode> {
        match self.contents.read(Vec::with_capacity(limit)).await {
            (StreamResult::Complete(_), bytes) => Ok(Some(bytes)),
            (StreamResult::Dropped | StreamResult::Cancelled, _) => Ok(None),
        }
    }

    /// What follows the body, once it has been read to its end.
    pub async fn trailers(self) -> Result<Fields, http::ErrorCode> {
        drop(self.contents);
        Ok(self
            .trailers
            .await?
            .map(|trailers| trailers.copy_all())
            .unwrap_or_default())
    }
}

pub struct Writer(StreamWriter<u8>);

impl Writer {
    /// Returns when the host has taken every byte.
    pub async fn write(&mut self, bytes: Vec<u8>) -> Result<(), http::ErrorCode> {
        match self.0.write_all(bytes).await.is_empty() {
            true => Ok(()),
            false => Err(http::ErrorCode::ConnectionTerminated),
        }
    }
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
    let headers = message::headers(headers, &body);
    let (contents, trailers) = lower(body);
    let (request, _sent) = http::Request::new(headers, contents, trailers, timeouts.options());
    message::address(&request, &method, &url)?;
    wasip3::http::client::send(request).await.map(Incoming)
}

/// The two ends of a body that the host reads; what is still to be written is
/// written by a task of its own.
fn lower(body: Body) -> (Option<StreamReader<u8>>, Trailers) {
    match body {
        Body::Empty => (None, wit_future::new(|| Ok(None)).1),
        Body::Relay(body) => (Some(body.contents), body.trailers),
        Body::Full(bytes) => {
            let (mut writer, contents) = wit_stream::new();
            spawn(async move {
                writer.write_all(bytes).await;
            });
            (Some(contents), wit_future::new(|| Ok(None)).1)
        }
        Body::Stream(produce) => {
            let (writer, contents) = wit_stream::new();
            // The default is for a producer that is dropped before its end.
            let (end, trailers) = wit_future::new(|| Err(http::ErrorCode::InternalError(None)));
            spawn(async move {
                let result = produce(Writer(writer)).await;
                // Nobody reads it when the peer has left.
                let _ = end.write(result.map(message::trailers)).await;
            });
            (Some(contents), trailers)
        }
    }
}

pub fn header_error(error: &http::HeaderError) -> &'static str {
    match error {
        http::HeaderError::InvalidSyntax => "invalid-syntax",
        http::HeaderError::Forbidden => "forbidden",
        http::HeaderError::Immutable => "immutable",
        http::HeaderError::SizeExceeded => "size-exceeded",
        http::HeaderError::Other(_) => "other",
    }
}

pub async fn sleep(time: Duration) {
    wasip3::clocks::monotonic_clock::wait_for(time.as_nanos() as u64).await;
}
