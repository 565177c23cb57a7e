//! What a guest says, whatever the version: responses, outgoing requests, and
//! the rules for passing on what somebody else said.

use crate::wasi_http::{OutgoingRequest, http};
use crate::{ErrorCode, Fields, HeaderError, IncomingBody, Method, Url, Writer};
use std::pin::Pin;
use std::time::Duration;

/// Fields that mean one connection, not the message (RFC 9110, section 7.6.1),
/// and `Host`, which follows from the URL.
const HOP_BY_HOP: [&str; 11] = [
    "connection",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailers",
    "transfer-encoding",
    "upgrade",
];

/// An answer. A `content-length` is added to a [`Body::Full`] that has none.
pub struct Response {
    pub status: u16,
    pub headers: Fields,
    pub body: Body,
}

impl Response {
    pub fn new(status: u16, headers: Fields, body: Body) -> Response {
        Response {
            status,
            headers,
            body,
        }
    }

    /// An answer in words.
    pub fn text(status: u16, text: impl Into<Vec<u8>>) -> Response {
        let content_type = ("content-type".into(), b"text/plain; charset=utf-8".into());
        Response::new(status, vec![content_type], Body::Full(text.into()))
    }
}

/// A request to somebody else.
pub struct Outgoing {
    pub method: Method,
    pub url: Url,
    pub headers: Fields,
    pub body: Body,
    pub timeouts: Timeouts,
}

/// How long to wait for an upstream; `None` leaves it to the host.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timeouts {
    pub connect: Option<Duration>,
    pub first_byte: Option<Duration>,
    pub between_bytes: Option<Duration>,
}

impl Timeouts {
    /// A host that cannot time one of them leaves it at its default.
    pub(crate) fn options(self) -> Option<http::RequestOptions> {
        self.connect.or(self.first_byte).or(self.between_bytes)?;
        let nanoseconds = |timeout: Option<Duration>| timeout.map(|time| time.as_nanos() as u64);
        let options = http::RequestOptions::new();
        let _ = options.set_connect_timeout(nanoseconds(self.connect));
        let _ = options.set_first_byte_timeout(nanoseconds(self.first_byte));
        let _ = options.set_between_bytes_timeout(nanoseconds(self.between_bytes));
        Some(options)
    }
}

/// Writes a body as it comes into being, and says which trailers follow. Its
/// error breaks the message off, so that it never looks complete.
type Produce = dyn FnOnce(Writer) -> Pin<Box<dyn Future<Output = Result<Fields, ErrorCode>>>>;

pub enum Body {
    Empty,
    Full(Vec<u8>),
    /// Passed on as it arrives, trailers and failure included.
    Relay(IncomingBody),
    Stream(Box<Produce>),
}

impl Body {
    /// A body written by `produce` while the message is on its way.
    pub fn stream<F>(produce: impl FnOnce(Writer) -> F + 'static) -> Body
    where
        F: Future<Output = Result<Fields, ErrorCode>> + 'static,
    {
        Body::Stream(Box::new(|writer| Box::pin(produce(writer))))
    }
}

/// The values of a field that is a comma-separated list.
pub fn values<'a>(fields: &'a Fields, name: &str) -> impl Iterator<Item = &'a str> {
    fields
        .iter()
        .filter(move |field| field.0.eq_ignore_ascii_case(name))
        .filter_map(|field| str::from_utf8(&field.1).ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
}

/// The fields that a message keeps on its next hop. Who can take trailers says
/// so hop by hop; since they are relayed, it is said again.
pub fn end_to_end(mut fields: Fields) -> Fields {
    let takes_trailers = values(&fields, "te").any(|what| what.eq_ignore_ascii_case("trailers"));
    let named: Vec<String> = values(&fields, "connection")
        .map(str::to_ascii_lowercase)
        .collect();
    fields.retain(|(name, _)| {
        let is = |other: &str| name.eq_ignore_ascii_case(other);
        !HOP_BY_HOP.into_iter().any(is) && !named.iter().any(|other| is(other))
    });
    if takes_trailers {
        fields.push(("te".into(), b"trailers".into()));
    }
    fields
}

/// Says whether the host lets a guest send these.
pub fn check(fields: &Fields) -> Result<(), HeaderError> {
    http::Fields::from_list(fields).map(drop)
}

/// Fields as the host takes them. Where it refuses one, the others go without:
/// which ones are refused is for each host to decide.
fn lower(fields: &Fields) -> http::Fields {
    http::Fields::from_list(fields).unwrap_or_else(|_| {
        let permitted = http::Fields::new();
        for (name, value) in fields {
            let _ = permitted.append(name, value);
        }
        permitted
    })
}

pub(crate) fn headers(mut fields: Fields, body: &Body) -> http::Fields {
    let has_length = || {
        fields
            .iter()
            .any(|(name, _)| name.eq_ignore_ascii_case("content-length"))
    };
    if let Body::Full(bytes) = body
        && !has_length()
    {
        fields.push(("content-length".into(), bytes.len().to_string().into()));
    }
    lower(&fields)
}

pub(crate) fn trailers(fields: Fields) -> Option<http::Trailers> {
    (!fields.is_empty()).then(|| lower(&fields))
}

pub(crate) fn address(
    request: &OutgoingRequest,
    method: &Method,
    url: &Url,
) -> Result<(), ErrorCode> {
    let invalid = |()| ErrorCode::HttpRequestUriInvalid;
    request
        .set_method(method)
        .map_err(|()| ErrorCode::HttpRequestMethodInvalid)?;
    request.set_scheme(Some(&url.scheme)).map_err(invalid)?;
    request
        .set_authority(Some(&url.authority))
        .map_err(invalid)?;
    request
        .set_path_with_query(Some(&url.path_with_query))
        .map_err(invalid)
}

/// Method names are case-sensitive.
pub fn method(name: &str) -> Method {
    match name {
        "GET" => Method::Get,
        "HEAD" => Method::Head,
        "POST" => Method::Post,
        "PUT" => Method::Put,
        "DELETE" => Method::Delete,
        "CONNECT" => Method::Connect,
        "OPTIONS" => Method::Options,
        "TRACE" => Method::Trace,
        "PATCH" => Method::Patch,
        other => Method::Other(other.into()),
    }
}

pub fn method_name(method: &Method) -> &str {
    match method {
        Method::Get => "GET",
        Method::Head => "HEAD",
        Method::Post => "POST",
        Method::Put => "PUT",
        Method::Delete => "DELETE",
        Method::Connect => "CONNECT",
        Method::Options => "OPTIONS",
        Method::Trace => "TRACE",
        Method::Patch => "PATCH",
        Method::Other(name) => name,
    }
}
