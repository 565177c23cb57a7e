//! A route: passes each request on to the URL in `ROUTE_URL`, and tells on
//! standard output what came and what went back.
//!
//! It drops headers that begin with `CamelHttp`, and appends a parameter with
//! a random value, so that no two requests go to the same URL. Bodies stream;
//! the log keeps the beginning of each.

use guest_http::{
    Body, ErrorCode, IncomingBody, Method, Outgoing, Request, Response, Timeouts, Url,
};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::env;

/// How much of a body the log shows.
const SHOWN: usize = 1024;
const PIECE: usize = 64 * 1024;

guest_http::serve!("house:guests/route", answer);

async fn answer(request: Request) -> Result<Response, ErrorCode> {
    Ok(route(request).await.unwrap_or_else(|refusal| refusal))
}

async fn route(request: Request) -> Result<Response, Response> {
    let mut url = env::var("ROUTE_URL")
        .ok()
        .and_then(|text| Url::parse(&text))
        .ok_or_else(|| Response::text(500, "ROUTE_URL must be set to an http or https URL.\n"))?;
    let separator = match url.path_with_query.as_str() {
        "" => "/?",
        path if path.contains('?') => "&",
        _ => "?",
    };
    let random: u32 = SmallRng::seed_from_u64(guest_http::random()).random();
    url.path_with_query
        .push_str(&format!("{separator}random={random}"));

    let method = request.method();
    let mut headers = guest_http::end_to_end(request.headers());
    headers.retain(|(name, _)| {
        !name
            .get(..9)
            .is_some_and(|start| start.eq_ignore_ascii_case("CamelHttp"))
    });
    let body = match method {
        Method::Get | Method::Head => Body::Empty,
        _ => logged("receive request body", request.into_body()),
    };
    let outgoing = Outgoing {
        method,
        url,
        headers,
        body,
        timeouts: Timeouts::default(),
    };
    let incoming = guest_http::send(outgoing).await.map_err(|code| {
        println!("no answer: {}", guest_http::describe(&code));
        Response::text(
            502,
            format!("No answer from ROUTE_URL: {}\n", guest_http::name(&code)),
        )
    })?;
    let status = incoming.status();
    println!("receive answer with status {status}");
    let headers = guest_http::end_to_end(incoming.headers());
    Ok(Response::new(
        status,
        headers,
        logged("receive answer body", incoming.into_body()),
    ))
}

/// Passes a body on, and logs it once it is through.
fn logged(what: &'static str, mut body: IncomingBody) -> Body {
    Body::stream(async move |mut writer| {
        let mut shown = Vec::new();
        while let Some(piece) = body.read(PIECE).await? {
            let missing = SHOWN - shown.len();
            shown.extend_from_slice(&piece[..piece.len().min(missing)]);
            writer.write(piece).await?;
        }
        let trailers = body.trailers().await?;
        println!("{what} {}", String::from_utf8_lossy(&shown));
        Ok(trailers)
    })
}
