//! Messages: headers and status, bodies in and out, trailers.

use crate::Asked;
use guest_http::{Body, ErrorCode, Fields, IncomingBody, Request, Response, Scheme, Writer};

const PIECE: usize = 64 * 1024;
/// The period of a streamed body: a prime, so that no buffer size hides a shift.
const PERIOD: usize = 251;

pub fn headers(request: &Request) -> Response {
    let scheme = match request.scheme() {
        None => String::new(),
        Some(Scheme::Http) => "http".into(),
        Some(Scheme::Https) => "https".into(),
        Some(Scheme::Other(name)) => name,
    };
    let mut text = format!(
        "method: {}\nscheme: {scheme}\nauthority: {}\npath: {}\n\n",
        guest_http::method_name(&request.method()),
        request.authority().unwrap_or_default(),
        request.target(),
    )
    .into_bytes();
    for (name, value) in request.headers() {
        text.extend([name.as_bytes(), b": ", &value, b"\n"].concat());
    }
    Response::text(200, text)
}

pub fn set_header(asked: &Asked) -> Response {
    let [name, value] = ["name", "value"].map(|part| asked.text(part).unwrap_or_default());
    with_headers(vec![(name.into(), value.into())])
}

pub fn big_headers(asked: &Asked) -> Response {
    let bytes: usize = asked.number("bytes").unwrap_or(0);
    let header = |index| {
        (
            format!("x-big-{index}"),
            vec![b'x'; 1000.min(bytes - index * 1000)],
        )
    };
    with_headers((0..bytes.div_ceil(1000)).map(header).collect())
}

fn with_headers(fields: Fields) -> Response {
    match guest_http::check(&fields) {
        Ok(()) => Response::new(200, fields, Body::Full(b"ok\n".into())),
        Err(error) => Response::text(200, format!("{}\n", guest_http::header_error(&error))),
    }
}

pub fn status(asked: &Asked) -> Response {
    let code = asked.number("code").unwrap_or(200);
    match code {
        204 | 304 => Response::new(code, Vec::new(), Body::Empty),
        _ => Response::text(code, format!("{code}\n")),
    }
}

pub fn echo(request: Request) -> Response {
    Response::new(200, echoed(&request), Body::Relay(request.into_body()))
}

pub fn copy(request: Request) -> Response {
    let headers = echoed(&request);
    let mut body = request.into_body();
    let body = Body::stream(async move |mut writer| {
        while let Some(piece) = body.read(PIECE).await? {
            writer.write(piece).await?;
        }
        body.trailers().await
    });
    Response::new(200, headers, body)
}

fn echoed(request: &Request) -> Fields {
    let mut headers = request.headers();
    headers.retain(|(name, _)| name == "content-type" || name == "trailer");
    headers
}

/// The body's length and its FNV-1a hash, of 64 bits.
pub async fn read(request: Request) -> Result<Response, ErrorCode> {
    let mut body = request.into_body();
    let (mut length, mut hash) = (0, 0xcbf2_9ce4_8422_2325_u64);
    while let Some(piece) = body.read(PIECE).await? {
        length += piece.len();
        hash = piece.iter().fold(hash, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
    }
    body.trailers().await?;
    Ok(Response::text(200, format!("{length} {hash:016x}\n")))
}

pub async fn drop_body(request: Request, asked: &Asked) -> Result<Response, ErrorCode> {
    read_part(request.into_body(), asked.number("after").unwrap_or(0)).await?;
    Ok(Response::text(200, "dropped\n"))
}

/// Reads that many bytes and drops the rest. A body that ends before says how.
pub async fn read_part(mut body: IncomingBody, bytes: usize) -> Result<(), ErrorCode> {
    let mut left = bytes;
    while left > 0 {
        let Some(piece) = body.read(left.min(PIECE)).await? else {
            return body.trailers().await.map(drop);
        };
        left -= piece.len();
    }
    Ok(())
}

pub fn stream(asked: &Asked) -> Response {
    let bytes: usize = asked.number("bytes").unwrap_or(0);
    let chunk = asked.number("chunk").unwrap_or(PIECE);
    let every = asked.time("every");
    let mut headers = vec![("content-type".into(), b"application/octet-stream".into())];
    if asked.text("length") == Some("1") {
        headers.push(("content-length".into(), bytes.to_string().into()));
    }
    let body = Body::stream(async move |mut writer| {
        for piece in pattern(bytes, chunk) {
            writer.write(piece).await?;
            if let Some(every) = every {
                guest_http::sleep(every).await;
            }
        }
        Ok(Fields::new())
    });
    Response::new(200, headers, body)
}

/// `bytes` bytes, number i of which is i % 251, in pieces of `chunk`.
pub fn pattern(bytes: usize, chunk: usize) -> impl Iterator<Item = Vec<u8>> {
    let chunk = chunk.clamp(1, bytes.max(1));
    let period: Vec<u8> = (0..chunk + PERIOD)
        .map(|index| (index % PERIOD) as u8)
        .collect();
    (0..bytes).step_by(chunk).map(move |start| {
        let phase = start % PERIOD;
        period[phase..phase + chunk.min(bytes - start)].to_vec()
    })
}

pub fn events(asked: &Asked) -> Response {
    let count: u64 = asked.number("count").unwrap_or(1);
    let every = asked.time("every").unwrap_or_default();
    let body = Body::stream(async move |mut writer| {
        for index in 0..count {
            if index > 0 {
                guest_http::sleep(every).await;
            }
            writer.write(format!("data: {index}\n\n").into()).await?;
        }
        Ok(Fields::new())
    });
    let headers = vec![("content-type".into(), b"text/event-stream".into())];
    Response::new(200, headers, body)
}

pub fn trailers() -> Response {
    let headers = vec![
        ("content-type".into(), b"text/plain".into()),
        ("trailer".into(), b"x-checksum, x-second".into()),
    ];
    let body = Body::stream(async |mut writer: Writer| {
        writer.write(b"body\n".into()).await?;
        Ok(vec![
            ("x-checksum".into(), b"123".into()),
            ("x-second".into(), b"two".into()),
        ])
    });
    Response::new(200, headers, body)
}

pub fn short_length(asked: &Asked) -> Response {
    let declared = asked.text("declare").unwrap_or("0");
    let sent = asked.number("send").unwrap_or(0);
    let body = Body::stream(async move |mut writer| {
        writer.write(vec![b'x'; sent]).await?;
        Ok(Fields::new())
    });
    Response::new(200, vec![("content-length".into(), declared.into())], body)
}
