//! Ways of not answering.

use crate::Asked;
use guest_http::{Body, Response};
use std::time::Duration;

/// One instruction, and no message from Rust.
pub fn trap() -> ! {
    core::arch::wasm32::unreachable()
}

/// The pause lets what was written leave before the trap.
pub fn trap_after_headers(asked: &Asked) -> Response {
    let bytes = asked.number("bytes").unwrap_or(0);
    let body = Body::stream(async move |mut writer| {
        writer.write(vec![b'x'; bytes]).await?;
        guest_http::sleep(Duration::from_millis(100)).await;
        trap()
    });
    Response::new(
        200,
        vec![("content-type".into(), b"text/plain".into())],
        body,
    )
}

/// Waits for something, as a guest must, that comes in a year.
pub async fn never() -> ! {
    loop {
        guest_http::sleep(Duration::from_secs(365 * 24 * 60 * 60)).await;
    }
}
