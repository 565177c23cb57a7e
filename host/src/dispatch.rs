//! The spine: one function from a request to its answer.
//!
//! Authority, route, admission, version, guest, answer, in this order. Every
//! request has one ending: the guest's answer, or a [`Failure`] that becomes a
//! status, a sentence and a line in the log.

use crate::admission::{Admission, Permit, Refused};
use crate::answer::{Answer, Length};
use crate::component::App;
use crate::exchange::Exchange;
use crate::headers::remove_hop_by_hop;
use crate::limits::Limits;
use crate::outcome::{Failure, Kind};
use crate::outgoing;
use crate::received::Trouble;
use crate::router::Router;
use http::header::{
    CONTENT_LENGTH, CONTENT_TYPE, DATE, HOST, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER,
    TRANSFER_ENCODING, UPGRADE,
};
use http::uri::{Authority, PathAndQuery, Scheme, Uri};
use http::{Method, Request, Response, StatusCode, Version as HttpVersion};
use http_body_util::BodyExt;
use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use wasmtime_wasi_http::{Error, WasiBody};

/// The connection that a request came by.
pub struct Hop {
    /// Our own address.
    pub local: SocketAddr,
    pub https: bool,
    /// What may turn out to be wrong with the request's body.
    pub trouble: Arc<Trouble>,
}

pub struct Dispatch {
    pub router: Router<Arc<App>>,
    pub admission: Admission,
    /// Set on every request, in place of the client's: `--header`.
    pub request_headers: Vec<(HeaderName, HeaderValue)>,
    pub answer_deadline: Duration,
    pub retry_after: Duration,
    pub depth: u8,
    /// Bytes.
    pub request_line: usize,
}

impl Dispatch {
    pub fn new(
        router: Router<Arc<App>>,
        request_headers: Vec<(HeaderName, HeaderValue)>,
        limits: &Limits,
    ) -> Self {
        Self {
            router,
            admission: Admission::new(limits.requests, limits.queue, limits.queue_wait),
            request_headers,
            answer_deadline: limits.answer,
            retry_after: limits.queue_wait.max(Duration::from_secs(1)),
            depth: limits.depth,
            request_line: limits.request_line_bytes,
        }
    }

    /// Answers a request from a socket.
    pub async fn request(&self, mut request: Request<WasiBody>, hop: Hop) -> Response<Answer> {
        let Hop {
            local,
            https,
            trouble,
        } = hop;
        let nobody = || Exchange::new("-".into(), 0, 0, https);
        if let Err(failure) = check_transfer_coding(request.headers()) {
            return self.refuse(&nobody(), &failure);
        }
        if let Some(cause) = not_supported(&request) {
            return self.refuse(&nobody(), &Failure::new(Kind::NotSupported, cause));
        }
        if request_line_length(&request) > self.request_line {
            let cause = format_args!("at most {} bytes are taken", self.request_line);
            return self.refuse(&nobody(), &Failure::new(Kind::RequestLineTooLong, cause));
        }
        if let Err(cause) = make_absolute(&mut request, local, https) {
            return self.refuse(&nobody(), &Failure::new(Kind::BadRequest, cause));
        }
        let Some(app) = self.router.find(request.uri().path()) else {
            return self.refuse(&nobody(), &self.no_route(&request));
        };
        let passes = outgoing::passes(request.headers());
        let exchange = Exchange::new(Arc::clone(&app.name), 0, passes, https);
        let permit = match self.admission.admit().await {
            Ok(permit) => permit,
            Err(refused) => return self.refuse(&exchange, &overloaded(refused)),
        };
        remove_hop_by_hop(request.headers_mut());
        self.set_request_headers(request.headers_mut());
        let trouble = trouble.failure();
        self.answer(app, exchange, request, Some(permit), trouble)
            .await
    }

    /// Answers a guest's request to `http://APP.internal/`, with the semantics
    /// of a request over TCP: a failure of the callee is an answer too.
    ///
    /// # Errors
    /// The calls are nested too deeply.
    pub async fn in_process(
        &self,
        app: &App,
        caller: Arc<Exchange>,
        mut request: Request<WasiBody>,
    ) -> Result<Response<WasiBody>, Error> {
        if caller.depth >= self.depth {
            let Exchange { id, app, depth, .. } = &*caller;
            tracing::warn!("request {id} app {app}: {depth} in-process calls deep, no further");
            return Err(Error::LoopDetected);
        }
        let https = request.uri().scheme() == Some(&Scheme::HTTPS);
        let name = Arc::clone(&app.name);
        let exchange = Exchange::new(name, caller.depth + 1, caller.passes, https);
        remove_hop_by_hop(request.headers_mut());
        let mut response = tokio::select! {
            biased;
            () = caller.cancelled() => return Err(Error::ConnectionTerminated),
            response = self.answer(app, exchange, request, None, pending()) => response,
        };
        remove_hop_by_hop(response.headers_mut());
        Ok(response.map(BodyExt::boxed_unsync))
    }

    async fn answer(
        &self,
        app: &App,
        exchange: Arc<Exchange>,
        request: Request<WasiBody>,
        permit: Option<Permit>,
        trouble: impl Future<Output = Failure>,
    ) -> Response<Answer> {
        let head = request.method() == Method::HEAD;
        let version = app.current();
        let gone = CancelOnDrop(Some(Arc::clone(&exchange)));
        let call = version.instances.call(&exchange, request);
        let call = async {
            tokio::select! {
                biased;
                // The guest sees an error in the body as well; what it makes
                // of that is of no interest.
                failure = trouble => Err(failure),
                response = call => response,
            }
        };
        let result = tokio::time::timeout(self.answer_deadline, call).await;
        gone.disarm();
        let response = match result {
            Ok(Ok(response)) if !is_final(response.status()) => Err(Failure::new(
                Kind::NoAnswer,
                format_args!("the guest answered with the status {}", response.status()),
            )),
            Ok(response) => response,
            Err(_) => Err(Failure::new(
                Kind::Deadline,
                format_args!("no answer within {:?}", self.answer_deadline),
            )),
        };
        match response {
            Ok(mut response) => {
                let length = make_truthful(&mut response, head);
                response.map(|body| Answer::of_guest(body, length, exchange, version, permit))
            }
            Err(failure) => {
                exchange.cancel();
                self.refuse(&exchange, &failure)
            }
        }
    }

    /// The host's own answer.
    fn refuse(&self, exchange: &Exchange, failure: &Failure) -> Response<Answer> {
        let Exchange { id, app, .. } = exchange;
        let status = failure.kind.status();
        let mut text = format!("{}.\nrequest {id}\n", failure.kind.sentence());
        if failure.kind.is_trouble() {
            tracing::error!("request {id} app {app}: {failure}");
        } else {
            tracing::info!("request {id} app {app}: {failure}");
            text = format!(
                "{}: {}.\nrequest {id}\n",
                failure.kind.sentence(),
                failure.cause
            );
        }
        let mut response = Response::new(Answer::text(text));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(
            CONTENT_TYPE,
            HeaderValue::from_static("text/plain; charset=utf-8"),
        );
        headers.insert(
            HeaderName::from_static("x-request-id"),
            HeaderValue::try_from(id.to_string()).expect("hexadecimal digits are a header value"),
        );
        if failure.kind.passes() {
            headers.insert(RETRY_AFTER, self.retry_after.as_secs().into());
        }
        response
    }

    fn no_route(&self, request: &Request<WasiBody>) -> Failure {
        let prefixes: Vec<_> = self.router.prefixes().map(|p| format!("{p}/")).collect();
        Failure::new(
            Kind::NoRoute,
            format_args!(
                "no app serves {}; there are {}",
                request.uri().path(),
                prefixes.join(", ")
            ),
        )
    }

    fn set_request_headers(&self, headers: &mut HeaderMap) {
        for (name, _) in &self.request_headers {
            headers.remove(name);
        }
        for (name, value) in &self.request_headers {
            headers.append(name, value.clone());
        }
    }
}

/// From 200 to 599, RFC 9110 section 15.
fn is_final(status: StatusCode) -> bool {
    (200..600).contains(&status.as_u16())
}

/// Cancels the exchange when the future that holds it is dropped, as hyper
/// does with a request whose client has gone.
struct CancelOnDrop(Option<Arc<Exchange>>);

impl CancelOnDrop {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        if let Some(exchange) = self.0.take() {
            exchange.cancel();
            let Exchange { id, app, .. } = &*exchange;
            tracing::info!("request {id} app {app}: client closed before the answer");
        }
    }
}

/// hyper has decoded `chunked`, and passes over what comes before it. A guest
/// would take a body that is still encoded for the content, RFC 9112 section
/// 6.1.
fn check_transfer_coding(headers: &HeaderMap) -> Result<(), Failure> {
    let values = headers.get_all(TRANSFER_ENCODING).iter();
    let mut codings = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    let is_chunked = |coding: &[u8]| coding.trim_ascii().eq_ignore_ascii_case(b"chunked");
    match (codings.next(), codings.next()) {
        (None | Some(_), None) => Ok(()),
        (Some(first), _) if is_chunked(first) => {
            Err(Failure::new(Kind::BadRequest, "its body is chunked twice"))
        }
        _ => Err(Failure::new(
            Kind::NotSupported,
            "a transfer coding but chunked",
        )),
    }
}

/// What wasi:http has no words for.
fn not_supported(request: &Request<WasiBody>) -> Option<&'static str> {
    let mut upgrades = request.headers().get_all(UPGRADE).iter();
    let websocket = |value: &HeaderValue| {
        let mut offers = value.as_bytes().split(|byte| *byte == b',');
        offers.any(|offer| offer.trim_ascii().eq_ignore_ascii_case(b"websocket"))
    };
    if request.method() == Method::CONNECT {
        Some("CONNECT")
    } else if upgrades.any(websocket) {
        Some("WebSocket")
    } else {
        // Other offers of Upgrade may be ignored, RFC 9110 section 7.8.
        None
    }
}

/// Method, target and version, and the spaces between them.
fn request_line_length(request: &Request<WasiBody>) -> usize {
    let uri = request.uri();
    let path = uri.path_and_query().map_or(0, |path| path.as_str().len());
    let authority = uri
        .authority()
        .map_or(0, |authority| authority.as_str().len());
    let scheme = uri
        .scheme_str()
        .map_or(0, |scheme| scheme.len() + "://".len());
    request.method().as_str().len() + scheme + authority + path + "  HTTP/1.1".len()
}

fn overloaded(refused: Refused) -> Failure {
    let cause = match refused {
        Refused::QueueFull => "--max-concurrent-requests and --request-queue are reached",
        Refused::WaitedTooLong => "--max-concurrent-requests is reached, and the wait was long",
    };
    Failure::new(Kind::Overloaded, cause)
}

/// Puts scheme and authority into the URI, where guests look for them.
///
/// The authority is that of an absolute URI or else `Host`, RFC 9112 section
/// 3.2.2; without either, in HTTP/1.0, it is the address that was connected to.
fn make_absolute(
    request: &mut Request<WasiBody>,
    local: SocketAddr,
    https: bool,
) -> Result<(), String> {
    let mut hosts = request.headers().get_all(HOST).iter();
    let host = hosts.next();
    if hosts.next().is_some() {
        return Err("more than one Host".into());
    }
    let host = match host {
        Some(host) => Some(parse_authority(host.as_bytes())?),
        None if request.version() == HttpVersion::HTTP_11 => return Err("no Host".into()),
        None => None,
    };
    let asterisk = request.uri().path() == "*";
    if asterisk && request.method() != Method::OPTIONS {
        return Err("only OPTIONS has the target *".into());
    }
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    match &parts.scheme {
        Some(scheme) if *scheme != Scheme::HTTP && *scheme != Scheme::HTTPS => {
            return Err(format!("the scheme of its target is {scheme}"));
        }
        // RFC 9112 section 3.2.3.
        None if parts.authority.is_some() => return Err("its target is an authority".into()),
        Some(_) | None => {}
    }
    let authority = match (parts.authority.take(), host) {
        (Some(authority), _) => authority,
        (None, Some(Some(host))) => host,
        (None, _) => local
            .to_string()
            .parse()
            .expect("an address is an authority"),
    };
    parts.authority = Some(authority);
    parts.scheme = Some(if https { Scheme::HTTPS } else { Scheme::HTTP });
    parts
        .path_and_query
        .get_or_insert(PathAndQuery::from_static("/"));
    *request.uri_mut() = Uri::from_parts(parts).map_err(|error| error.to_string())?;
    Ok(())
}

/// `Host` may be empty, RFC 9110 section 7.2, and has no user information.
fn parse_authority(host: &[u8]) -> Result<Option<Authority>, String> {
    if host.is_empty() {
        return Ok(None);
    }
    match Authority::try_from(host) {
        Ok(authority) if !authority.as_str().contains('@') => Ok(Some(authority)),
        _ => Err(format!("Host is \"{}\"", host.escape_ascii())),
    }
}

/// Mends what a guest may set and must not send.
fn make_truthful(response: &mut Response<WasiBody>, head: bool) -> Length {
    let status = response.status();
    let headers = response.headers_mut();
    if headers.get_all(DATE).iter().count() > 1 {
        let first = headers[DATE].clone();
        headers.insert(DATE, first);
    }
    if status == StatusCode::NO_CONTENT {
        headers.remove(CONTENT_LENGTH);
    }
    if head || status == StatusCode::NO_CONTENT || status == StatusCode::NOT_MODIFIED {
        return Length::None;
    }
    let promised = headers
        .get(CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok());
    match promised.and_then(|value| value.parse().ok()) {
        Some(bytes) => Length::Promised(bytes),
        None => Length::Unknown,
    }
}
