//! Outgoing requests.

use crate::{Asked, bodies};
use guest_http::{
    Body, ErrorCode, Fields, Incoming, Method, Outgoing, Request, Response, Timeouts, Url,
};

pub async fn call(asked: &Asked) -> Response {
    let Some(url) = url(asked) else {
        return no_url();
    };
    let fields = asked
        .0
        .all("header")
        .filter_map(|field| field.split_once(':'));
    let bytes: usize = asked.number("body-bytes").unwrap_or(0);
    let chunk = asked.number("chunk").unwrap_or(bytes);
    let outgoing = Outgoing {
        method: guest_http::method(asked.text("method").unwrap_or("GET")),
        url,
        headers: fields
            .map(|(name, value)| (name.into(), value.into()))
            .collect(),
        body: match bytes {
            0 => Body::Empty,
            _ => written(bytes, chunk),
        },
        timeouts: Timeouts {
            connect: asked.time("connect-ms"),
            first_byte: asked.time("first-byte-ms"),
            between_bytes: asked.time("between-bytes-ms"),
        },
    };
    relay(guest_http::send(outgoing).await)
}

fn written(bytes: usize, chunk: usize) -> Body {
    Body::stream(async move |mut writer| {
        for piece in bodies::pattern(bytes, chunk) {
            writer.write(piece).await?;
        }
        Ok(Fields::new())
    })
}

pub async fn call_drop(asked: &Asked) -> Response {
    let Some(url) = url(asked) else {
        return no_url();
    };
    let time = guest_http::sleep(asked.time("ms").unwrap_or_default());
    match guest_http::race(guest_http::send(get(url)), time).await {
        None => Response::text(200, "dropped\n"),
        Some(result) => relay(result),
    }
}

pub async fn forward(request: Request, asked: &Asked) -> Response {
    let Some(url) = url(asked) else {
        return no_url();
    };
    let method = request.method();
    let headers = guest_http::end_to_end(request.headers());
    let body = match method {
        Method::Get | Method::Head => Body::Empty,
        _ => Body::Relay(request.into_body()),
    };
    let outgoing = Outgoing {
        method,
        url,
        headers,
        body,
        timeouts: Timeouts::default(),
    };
    relay(guest_http::send(outgoing).await)
}

/// Answers at once. The call's answer is read to its end and forgotten.
pub fn background(asked: &Asked) -> Response {
    let Some(url) = url(asked) else {
        return no_url();
    };
    let time = asked.time("ms").unwrap_or_default();
    guest_http::spawn(async move {
        guest_http::sleep(time).await;
        if let Ok(incoming) = guest_http::send(get(url)).await {
            let mut body = incoming.into_body();
            while let Ok(Some(_)) = body.read(4096).await {}
        }
    });
    Response::text(200, "later\n")
}

fn url(asked: &Asked) -> Option<Url> {
    Url::parse(asked.text("url")?)
}

fn no_url() -> Response {
    Response::text(
        400,
        "Parameter url must be an absolute http or https URL.\n",
    )
}

fn get(url: Url) -> Outgoing {
    let (headers, timeouts) = (Fields::new(), Timeouts::default());
    Outgoing {
        method: Method::Get,
        url,
        headers,
        body: Body::Empty,
        timeouts,
    }
}

/// An answer that breaks off upstream breaks off here too.
fn relay(result: Result<Incoming, ErrorCode>) -> Response {
    match result {
        Ok(incoming) => {
            let status = incoming.status();
            let headers = guest_http::end_to_end(incoming.headers());
            Response::new(status, headers, Body::Relay(incoming.into_body()))
        }
        Err(code) => Response::text(502, format!("error: {}\n", guest_http::describe(&code))),
    }
}
