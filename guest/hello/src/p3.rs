//! Hello for wasi:http 0.3.

use wasip3::http::types::{ErrorCode, Fields, Request, Response};
use wasip3::{spawn_local, wit_future, wit_stream};

const GREETING: &str = "Hello, world!\n";

struct Hello;

wasip3::http::service::export!(Hello);

impl wasip3::exports::http::handler::Guest for Hello {
    async fn handle(_request: Request) -> Result<Response, ErrorCode> {
        let headers = Fields::from_list(&[
            ("content-type".into(), b"text/plain".into()),
            ("content-length".into(), GREETING.len().to_string().into()),
        ])
        .map_err(|error| ErrorCode::InternalError(Some(error.to_string())))?;
        let (mut body, contents) = wit_stream::new();
        let (_, trailers) = wit_future::new(|| Ok(None));
        spawn_local(async move {
            body.write_all(GREETING.into()).await;
        });
        Ok(Response::new(headers, Some(contents), trailers).0)
    }
}
