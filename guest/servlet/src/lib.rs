//! The forwarding servlet: passes each request on to a remote application and
//! is suspended until the answer comes, which it relays as it streams.
//!
//! On `/localApp/async` it draws a delay and a status code at random, unless
//! the parameters `delay` and `code` give them, and asks the remote for both.
//! The environment says where the remote is; the request may say otherwise:
//!
//! | variable       | parameter   | default                  |
//! |----------------|-------------|--------------------------|
//! | `REMOTE_URL`   | `remoteUrl` | `http://remote.internal` |
//! | `REMOTE_PATH`  |             | `/remoteApp/remote`      |
//! | `DELAY_MAX_MS` |             | 4000                     |
//!
//! Redirects are relayed, not followed. Nothing is retried.

use guest_http::{
    Body, ErrorCode, Fields, Incoming, Method, Outgoing, Query, Request, Response, Timeouts, Url,
};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use std::env;

const PATH: &str = "/localApp/async";
/// Half of the codes drawn are 200, the others are one of these.
const OTHER_CODES: [u16; 7] = [301, 400, 401, 403, 404, 500, 503];
/// How this servlet names itself in `CDN-Loop` (RFC 8586).
const CDN_ID: &str = "servlet";
/// How often one request may pass through here before it counts as a loop.
const MAX_PASSES: usize = 8;

guest_http::serve!("house:guests/servlet", answer);

async fn answer(request: Request) -> Result<Response, ErrorCode> {
    Ok(forward(request).await.unwrap_or_else(|refusal| refusal))
}

/// The remote's answer, or the reason why there is none.
async fn forward(request: Request) -> Result<Response, Response> {
    let target = request.target();
    let (path, query) = Query::split(&target);
    if path != PATH {
        return Err(Response::text(404, format!("Nothing here; try {PATH}\n")));
    }
    let url = remote_url(&query)?;
    let method = request.method();
    let received = request.headers();
    let passes = guest_http::values(&received, "cdn-loop")
        .filter(|info| is_ours(info))
        .count();
    if passes >= MAX_PASSES {
        let text = format!("Loop: this request has passed through here {passes} times already.\n");
        return Err(Response::text(508, text));
    }

    let has_body = has_body(&method, &received);
    let mut headers = guest_http::end_to_end(received);
    headers.push(("cdn-loop".into(), CDN_ID.into()));
    // Trailers are relayed, whoever asked for them on the hop before.
    if guest_http::values(&headers, "te").next().is_none() {
        headers.push(("te".into(), b"trailers".into()));
    }
    let body = if has_body {
        Body::Relay(request.into_body())
    } else {
        Body::Empty
    };
    let remote = url.authority.clone();
    let outgoing = Outgoing {
        method,
        url,
        headers,
        body,
        timeouts: Timeouts::default(),
    };
    match guest_http::send(outgoing).await {
        Ok(incoming) => Ok(relay(incoming)),
        Err(code) => Err(refusal(&remote, &code)),
    }
}

/// Where this request goes, with the delay and the code that the remote is
/// asked for.
fn remote_url(query: &Query) -> Result<Url, Response> {
    let base = query
        .get("remoteUrl")
        .map(String::from)
        .or_else(|| env::var("REMOTE_URL").ok());
    let base = base.as_deref().unwrap_or("http://remote.internal");
    let mut url = Url::parse(base)
        .filter(|url| !url.path_with_query.contains('?'))
        .ok_or_else(|| bad_request("remoteUrl must be the base of a server, as http://foo:8080"))?;

    let mut random = SmallRng::seed_from_u64(guest_http::random());
    let delay_ms = match query.get("delay") {
        Some(text) => text
            .parse()
            .map_err(|_| bad_request("delay must be a whole number of ms"))?,
        None => random.random_range(0..=delay_max_ms()),
    };
    let code = match query.get("code") {
        Some(text) => text
            .parse()
            .map_err(|_| bad_request("code must be a status code"))?,
        None if random.random() => 200,
        None => *OTHER_CODES
            .choose(&mut random)
            .expect("the list has entries"),
    };

    let path = env::var("REMOTE_PATH");
    let path = path.as_deref().unwrap_or("/remoteApp/remote");
    let base_path = url.path_with_query.trim_end_matches('/');
    url.path_with_query = format!("{base_path}{path}?delay={delay_ms}&code={code}");
    Ok(url)
}

fn delay_max_ms() -> u32 {
    env::var("DELAY_MAX_MS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(4000)
}

/// A member of `CDN-Loop` is an identifier, perhaps with parameters.
fn is_ours(info: &str) -> bool {
    info.split(';')
        .next()
        .is_some_and(|id| id.trim().eq_ignore_ascii_case(CDN_ID))
}

/// Nothing says whether a request has a body until the body has been read. GET
/// and HEAD have none that means anything (RFC 9110, section 9.3.1), so they
/// are taken at their word, and do not go out as an empty stream.
fn has_body(method: &Method, headers: &Fields) -> bool {
    let length = guest_http::values(headers, "content-length").next();
    match method {
        Method::Get | Method::Head => length.is_some_and(|length| length != "0"),
        _ => length != Some("0"),
    }
}

fn relay(incoming: Incoming) -> Response {
    let status = incoming.status();
    let headers = guest_http::end_to_end(incoming.headers());
    Response::new(status, headers, Body::Relay(incoming.into_body()))
}

fn refusal(remote: &str, code: &ErrorCode) -> Response {
    let (status, what) = match code {
        ErrorCode::DnsTimeout
        | ErrorCode::ConnectionTimeout
        | ErrorCode::ConnectionReadTimeout
        | ErrorCode::HttpResponseTimeout => (504, "did not answer in time"),
        ErrorCode::HttpRequestDenied | ErrorCode::DestinationIpProhibited => {
            (403, "is a destination that this host forbids")
        }
        ErrorCode::LoopDetected => (508, "would be asked in a loop"),
        _ => (502, "failed"),
    };
    let reason = guest_http::describe(code);
    Response::text(status, format!("The remote {remote} {what}: {reason}\n"))
}

fn bad_request(what: &str) -> Response {
    Response::text(400, format!("Parameter {what}.\n"))
}
