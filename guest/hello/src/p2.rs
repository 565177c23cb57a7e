//! Hello for wasi:http 0.2.

use wasip2::http::types::{
    Fields, IncomingRequest, OutgoingBody, OutgoingResponse, ResponseOutparam,
};

const GREETING: &str = "Hello, world!\n";

struct Hello;

wasip2::http::proxy::export!(Hello);

impl wasip2::exports::http::incoming_handler::Guest for Hello {
    fn handle(_request: IncomingRequest, answer: ResponseOutparam) {
        let headers = Fields::from_list(&[
            ("content-type".into(), b"text/plain".into()),
            ("content-length".into(), GREETING.len().to_string().into()),
        ]);
        let response = OutgoingResponse::new(headers.expect("both headers are well-formed"));
        let body = response.body().expect("the body was not taken before");
        ResponseOutparam::set(answer, Ok(response));
        let contents = body.write().expect("the stream was not taken before");
        // An error here says that the client has left.
        let _ = contents.blocking_write_and_flush(GREETING.as_bytes());
        drop(contents);
        let _ = OutgoingBody::finish(body, None);
    }
}
