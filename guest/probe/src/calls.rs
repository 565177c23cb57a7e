//! Outgoing requests.

use crate::{Asked, bodies};
use guest_http::{
    Body, ErrorCode, Fields, Incoming, Method, Outgoing, Request, Response, Timeouts, Url,
};

pub async fn call(asked: &Asked) -> Response {
    match outgoing(asked) {
        Some(outgoing) => relay(guest_http::send(outgoing).await),
        None => no_url(),
    }
}

/// Its own body goes on being sent, however long that takes.
pub async fn call_part(asked: &Asked) -> Response {
    let Some(outgoing) = outgoing(asked) else {
        return no_url();
    };
    let after = asked.number("after").unwrap_or(0);
    let read = async {
        let incoming = guest_http::send(outgoing).await?;
        if after == 0 {
            return Ok(());
        }
        bodies::read_part(incoming.into_body(), after).await
    };
    match read.await {
        Ok(()) => Response::text(200, "dropped\n"),
        Err(code) => failed(&code),
    }
}

fn outgoing(asked: &Asked) -> Option<Outgoing> {
    let fields = |name| -> Fields {
        let given = asked.0.all(name);
        let pairs = given.filter_map(|field| field.split_once(':'));
        pairs
            .map(|(name, value)| (name.into(), value.into()))
            .collect()
    };
    let trailers = fields("trailer");
    let body = match asked.number("body-bytes").unwrap_or(0) {
        0 if trailers.is_empty() => Body::Empty,
        bytes => written(asked, bytes, trailers),
    };
    Some(Outgoing {
        method: guest_http::method(asked.text("method").unwrap_or("GET")),
        url: url(asked)?,
        headers: fields("header"),
        body,
        timeouts: Timeouts {
            connect: asked.time("connect-ms"),
            first_byte: asked.time("first-byte-ms"),
            between_bytes: asked.time("between-bytes-ms"),
        },
    })
}

fn written(asked: &Asked, bytes: usize, trailers: Fields) -> Body {
    let chunk = asked.number("chunk").unwrap_or(bytes);
    let every = asked.time("every");
    let mut until_cut = asked.number("cut").unwrap_or(usize::MAX);
    Body::stream(async move |mut writer| {
        for piece in bodies::pattern(bytes, chunk) {
            until_cut = match until_cut.checked_sub(piece.len()) {
                Some(left) => left,
                None => return Err(ErrorCode::InternalError(Some("cut".into()))),
            };
            writer.write(piece).await?;
            if let Some(every) = every {
                guest_http::sleep(every).await;
            }
        }
        Ok(trailers)
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
        Err(code) => failed(&code),
    }
}

fn failed(code: &ErrorCode) -> Response {
    Response::text(502, format!("error: {}\n", guest_http::describe(code)))
}
