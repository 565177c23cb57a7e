//! The remote application: takes its time, then answers with the status that
//! it was asked for.
//!
//! Under `/remoteApp/remote` it reads `delay` (milliseconds) and `code` and
//! sleeps without holding a thread. Then 200 serves a page, **500 divides by
//! zero**, so that the guest traps, and every other code is sent with a short
//! page.

use guest_http::{Body, ErrorCode, Query, Request, Response, sleep};
use std::time::Duration;

const PATH: &str = "/remoteApp/remote";
const PAGE: &[u8] = include_bytes!("dummy.html");
/// An hour.
const MAX_DELAY_MS: u32 = 3_600_000;

guest_http::serve!("house:guests/remote", answer);

async fn answer(request: Request) -> Result<Response, ErrorCode> {
    let target = request.target();
    let (path, query) = Query::split(&target);
    if path != PATH {
        return Ok(Response::text(
            404,
            format!("Nothing here; try {PATH}?delay=1000&code=200\n"),
        ));
    }
    let asked = number(&query, "delay", 0..=MAX_DELAY_MS)
        .and_then(|delay_ms| Ok((delay_ms, number(&query, "code", 200..=599)?)));
    let (delay_ms, code) = match asked {
        Ok(asked) => asked,
        Err(sentence) => return Ok(Response::text(400, sentence)),
    };

    if delay_ms > 0 {
        sleep(Duration::from_millis(delay_ms.into())).await;
    }
    Ok(match code {
        200 => page(200, PAGE),
        204 | 304 => Response::new(code as u16, Vec::new(), Body::Empty),
        500 => page(
            500,
            error_page(divide(code as i32, code as i32 - 500).quotient as u32),
        ),
        _ => page(code as u16, error_page(code)),
    })
}

/// A parameter that must be given, and lie in `range`.
fn number(query: &Query, name: &str, range: std::ops::RangeInclusive<u32>) -> Result<u32, String> {
    let expected = format!("a whole number from {} to {}", range.start(), range.end());
    let text = query
        .get(name)
        .ok_or(format!("Parameter {name} is missing: {expected}.\n"))?;
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let value = text
        .parse()
        .ok()
        .filter(|value| digits && range.contains(value));
    value.ok_or_else(|| format!("Parameter {name} must be {expected}.\n"))
}

fn page(status: u16, html: impl Into<Vec<u8>>) -> Response {
    let content_type = ("content-type".into(), b"text/html; charset=utf-8".into());
    Response::new(status, vec![content_type], Body::Full(html.into()))
}

fn error_page(code: u32) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<title>Status {code}</title>\n\
         <h1>Status {code}</h1>\n<p>The remote application was asked for this.</p>\n</html>\n"
    )
}

/// What C's `div` gives back.
#[repr(C)]
struct Division {
    quotient: i32,
    _remainder: i32,
}

#[allow(
    unsafe_code,
    reason = "Rust has no division that leaves the check to the machine"
)]
unsafe extern "C" {
    /// Divides in the C library, which is compiled already: one `i32.div_s`,
    /// which traps where the divisor is zero. Rust would compare first and
    /// panic, and the host could not tell that from any other panic.
    #[link_name = "div"]
    safe fn divide(dividend: i32, divisor: i32) -> Division;
}
