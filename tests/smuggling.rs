//! Requests that two servers in a row could read differently, RFC 9112 section 11.2: each gets the
//! status that the RFC asks for, and where the framing is in doubt, the end of its connection.

use crate::harness::{Host, World};

on_both_worlds![
    what_could_be_read_in_two_ways_is_refused,
    what_is_odd_but_clear_is_served
];

const GET: &str = "GET /hello HTTP/1.1\r\nHost: x\r\n";
const POST: &str = "POST /read HTTP/1.1\r\nHost: x\r\n";
const CHUNKED: &str = "POST /read HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";

/// Sends the request, and behind it another one that must never be answered.
fn refuses(host: &Host, what: &str, request: &[u8], status: u16) {
    let mut wire = host.connect();
    wire.send(request);
    wire.send(b"GET /hello HTTP/1.1\r\nHost: smuggled\r\n\r\n");
    assert_eq!(wire.answer("GET").status(), status, "{what}");
    assert!(
        wire.try_answer("GET").is_none(),
        "{what}: the connection goes on"
    );
}

fn what_could_be_read_in_two_ways_is_refused(world: World) {
    let host = Host::probe(world);
    let headers: &[(&str, &str, u16)] = &[
        // Section 6.3: the length of a message.
        (
            POST,
            "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
            400,
        ),
        (POST, "Content-Length: 3, 4\r\n\r\nabcd", 400),
        (POST, "Content-Length: +3\r\n\r\nabc", 400),
        (POST, "Content-Length: -1\r\n\r\n", 400),
        (POST, "Content-Length: 0x3\r\n\r\nabc", 400),
        (
            POST,
            "Content-Length: 3 \r\nContent-Length: 03 4\r\n\r\nabc",
            400,
        ),
        (POST, "Content-Length: \r\n\r\n", 400),
        (POST, "Content-Length: 1 1\r\n\r\nabc", 400),
        (POST, "Content-Length: 18446744073709551616\r\n\r\nabc", 400),
        // Section 6.1: transfer codings.
        (POST, "Transfer-Encoding: gzip\r\n\r\n0\r\n\r\n", 400),
        (
            POST,
            "Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
            400,
        ),
        (POST, "Transfer-Encoding: identity\r\n\r\n", 400),
        (POST, "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 400),
        (
            POST,
            "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
            400,
        ),
        (
            POST,
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
        ),
        (
            POST,
            "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
            501,
        ),
        (POST, "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", 400),
        (
            "POST /read HTTP/1.0\r\n",
            "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
        ),
        // Section 5: fields.
        (GET, "X: a\r\n b\r\n\r\n", 400),
        (GET, "X: a\rb\r\n\r\n", 400),
        (GET, "X: a\0b\r\n\r\n", 400),
        (GET, "X : a\r\n\r\n", 400),
        (GET, ": a\r\n\r\n", 400),
        (GET, "Xa\r\n\r\n", 400),
        (GET, "X Y: a\r\n\r\n", 400),
        (GET, "X\0: a\r\n\r\n", 400),
        ("GET /hello HTTP/1.1\r\n", " Host: x\r\n\r\n", 400),
        // Section 3.2: the target, and Host.
        ("GET /hello HTTP/1.1\r\n", "\r\n", 400),
        (GET, "Host: y\r\n\r\n", 400),
        (GET, "Host: x\r\n\r\n", 400),
        ("GET /hello HTTP/1.1\r\n", "Host: a b\r\n\r\n", 400),
        ("GET /hello HTTP/1.1\r\n", "Host: a@b\r\n\r\n", 400),
        ("GET /hello HTTP/1.1\r\n", "Host: a/b\r\n\r\n", 400),
        ("GET ftp://x/hello HTTP/1.1\r\n", "Host: x\r\n\r\n", 400),
        ("GET * HTTP/1.1\r\n", "Host: x\r\n\r\n", 400),
        ("GET x:80 HTTP/1.1\r\n", "Host: x\r\n\r\n", 400),
        ("GET /hel\0lo HTTP/1.1\r\n", "Host: x\r\n\r\n", 400),
        ("GET  /hello HTTP/1.1\r\n", "Host: x\r\n\r\n", 400),
        ("GET\t/hello HTTP/1.1\r\n", "Host: x\r\n\r\n", 400),
        ("G(T /hello HTTP/1.1\r\n", "Host: x\r\n\r\n", 400),
        ("GET /hello HTTP/1.2\r\n", "Host: x\r\n\r\n", 400),
        ("GET /hello HTTP/2.0\r\n", "Host: x\r\n\r\n", 400),
        ("GET /hello http/1.1\r\n", "Host: x\r\n\r\n", 400),
        ("GET /hello\r\n", "Host: x\r\n\r\n", 400),
        ("CONNECT x:80 HTTP/1.1\r\n", "Host: x\r\n\r\n", 501),
        (
            GET,
            "Connection: upgrade\r\nUpgrade: websocket\r\n\r\n",
            501,
        ),
        // Section 7.1: chunks.
        (CHUNKED, "xyz\r\nabc\r\n0\r\n\r\n", 400),
        (CHUNKED, "-1\r\nabc\r\n0\r\n\r\n", 400),
        (CHUNKED, "0x3\r\nabc\r\n0\r\n\r\n", 400),
        (CHUNKED, "fffffffffffffffff\r\nabc\r\n0\r\n\r\n", 400),
        (CHUNKED, "3\nabc\n0\n\n", 400),
        (CHUNKED, "3\r\nabcd\r\n0\r\n\r\n", 400),
        (CHUNKED, "\r\nabc\r\n0\r\n\r\n", 400),
        (CHUNKED, "0\r\nX : 5\r\n\r\n", 400),
    ];
    for (line, rest, status) in headers {
        let request = format!("{line}{rest}");
        refuses(&host, &format!("{request:?}"), request.as_bytes(), *status);
    }
    let extension = format!("{CHUNKED}3;{}\r\nabc\r\n0\r\n\r\n", "a".repeat(20_000));
    refuses(
        &host,
        "a chunk extension of 20 000 bytes",
        extension.as_bytes(),
        400,
    );
    refuses(
        &host,
        "a byte beyond ASCII",
        b"GET /hell\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        400,
    );
    refuses(
        &host,
        "a ClientHello",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        400,
    );
    assert!(host.log().text().contains("bad-request"));
    host.get("/hello").expect(200);
}

fn what_is_odd_but_clear_is_served(world: World) {
    let host = Host::probe(world);
    let requests = [
        // Section 6.3: a length that is said twice and is the same.
        format!("{POST}Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc"),
        format!("{CHUNKED}3;name=value\r\nabc\r\n0\r\n\r\n"),
        format!("{CHUNKED}0003\r\nabc\r\n00\r\n\r\n"),
        // Section 2.2.
        format!("\r\n\r\n{POST}Content-Length: 3\r\n\r\nabc"),
        // RFC 9110 section 7.8: an offer may be ignored.
        format!("{POST}Content-Length: 3\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\nabc"),
        "POST http://y/read HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc".into(),
    ];
    let mut wire = host.connect();
    for request in &requests {
        wire.send(request.as_bytes());
        let answer = wire.answer("POST").expect(200);
        assert!(
            answer.text().starts_with("3 "),
            "{request:?}: {}",
            answer.text()
        );
    }
    // Section 6.3: Transfer-Encoding wins, and the connection ends.
    let mut wire = host.connect();
    let both = "Content-Length: 30\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    wire.send(format!("{POST}{both}").as_bytes());
    assert!(wire.answer("POST").expect(200).text().starts_with("3 "));
    assert!(wire.at_end());
}
