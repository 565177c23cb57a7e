//! Upstreams with TLS and HTTP/2: ALPN, roots, client certificates, shared connections.

use crate::harness::{Host, Scratch, World, call, encode, pattern};
use crate::servlet::stream_through;
use crate::upstream::{Authority, Upstream};
use crate::wire::chunk;
use http::Version;
use std::sync::atomic::{AtomicUsize, Ordering};

on_both_worlds![
    alpn_decides_between_http_1_and_2,
    http_2_needs_no_tls_where_it_is_known,
    parallel_calls_share_one_http_2_connection,
    a_burst_to_known_http_2_opens_one_connection,
    trailers_pass_both_ways_over_http_2,
    bodies_pass_both_ways_over_http_2,
    no_empty_frame_reaches_a_guest,
    an_answer_dropped_over_http_2_harms_no_other,
    a_client_certificate_is_shown_where_it_was_asked_for,
    sessions_are_resumed,
];

/// An upstream with these protocols, and a probe that trusts it.
fn pair(world: World, alpn: &[&str]) -> (Upstream, Host) {
    let authority = Authority::new();
    static PAIRS: AtomicUsize = AtomicUsize::new(0);
    let number = PAIRS.fetch_add(1, Ordering::Relaxed);
    let scratch = Scratch::new(&format!("tls-{number}"), world);
    let ca = scratch.file("ca.pem", authority.pem().as_bytes());
    let host = Host::guest(world, "probe", &["--egress-ca", ca.to_str().unwrap()]);
    (Upstream::tls(authority.server(alpn)), host)
}

fn plain_http2(world: World) -> (Upstream, Host) {
    let upstream = Upstream::plain_http2();
    let url = format!("http://{}", upstream.addr);
    let host = Host::guest(world, "probe", &["--egress-http2", &url]);
    (upstream, host)
}

fn alpn_decides_between_http_1_and_2(world: World) {
    let table: &[(&[&str], Version)] = &[
        (&["h2", "http/1.1"], Version::HTTP_2),
        (&["http/1.1", "h2"], Version::HTTP_11),
        (&["http/1.1"], Version::HTTP_11),
        (&["h2"], Version::HTTP_2),
        (&[], Version::HTTP_11),
    ];
    for (alpn, version) in table {
        let (upstream, host) = pair(world, alpn);
        for name in ["127.0.0.1", "localhost"] {
            let authority = format!("{name}:{}", upstream.addr.port());
            for _ in 0..2 {
                let answer = host
                    .get(&call(&format!("https://{authority}/")))
                    .expect(200);
                assert_eq!(answer.text(), "up", "{alpn:?}");
            }
            let seen = upstream.last();
            assert_eq!(seen.version, *version, "{alpn:?}");
            let hosts: Vec<_> = seen.headers.get_all("host").iter().collect();
            match *version {
                Version::HTTP_2 => {
                    assert_eq!((seen.authority, hosts.len()), (Some(authority), 0))
                }
                _ => assert_eq!(hosts, [&authority]),
            }
        }
        assert_eq!(upstream.record().connections, 2, "{alpn:?}");
    }
}

fn http_2_needs_no_tls_where_it_is_known(world: World) {
    let (upstream, host) = plain_http2(world);
    let url = format!("http://{}/", upstream.addr);
    for target in [
        call(&url),
        format!("{}&method=POST&body-bytes=100", call(&url)),
    ] {
        assert_eq!(host.get(&target).expect(200).text(), "up");
        let seen = upstream.last();
        assert_eq!(seen.version, Version::HTTP_2);
        assert_eq!(seen.authority, Some(upstream.addr.to_string()));
        assert!(!seen.headers.contains_key("host"), "{:?}", seen.headers);
    }
    assert_eq!(upstream.record().connections, 1);
}

/// Once the upstream is known to speak it; the first ones of all may each open a connection.
fn parallel_calls_share_one_http_2_connection(world: World) {
    let (upstream, host) = pair(world, &["h2"]);
    host.get(&call(&upstream.url("/"))).expect(200);
    let url = upstream.url("/slow");
    call_at_once(&host, &url, 50);
    let record = upstream.record();
    assert_eq!((record.requests.len(), record.connections), (51, 1));
}

fn a_burst_to_known_http_2_opens_one_connection(world: World) {
    let (upstream, host) = plain_http2(world);
    call_at_once(&host, &format!("http://{}/slow", upstream.addr), 50);
    let record = upstream.record();
    assert_eq!((record.requests.len(), record.connections), (50, 1));
}

fn call_at_once(host: &Host, url: &str, calls: usize) {
    let mut clients: Vec<_> = (0..calls)
        .map(|_| host.send("GET", &call(url), &[], b""))
        .collect();
    for client in &mut clients {
        client.answer("GET").expect(200);
    }
}

fn trailers_pass_both_ways_over_http_2(world: World) {
    let (upstream, host) = pair(world, &["h2"]);
    let body = [chunk(b"abc"), b"0\r\nX-Sum: 7\r\n\r\n".to_vec()].concat();
    let fields = [
        "Transfer-Encoding: chunked",
        "Trailer: x-sum",
        "TE: trailers",
    ];
    let forward = format!("/forward?url={}", encode(&upstream.url("/echo")));
    let own = format!(
        "{}&method=POST&body-bytes=3&header=trailer:x-sum&trailer=x-sum:7",
        call(&upstream.url("/echo"))
    );
    for (method, target, body) in [("POST", forward, &body[..]), ("GET", own, b"")] {
        let fields = if body.is_empty() {
            &fields[2..]
        } else {
            &fields
        };
        let answer = host.ask(method, &target, fields, body).expect(200);
        assert_eq!((answer.body.len(), answer.trailer("x-sum")), (3, Some("7")));
        assert_eq!(upstream.last().version, Version::HTTP_2);
    }
}

/// More than any window, so that flow control has to work.
fn bodies_pass_both_ways_over_http_2(world: World) {
    let (upstream, host) = pair(world, &["h2"]);
    let target = |path: &str| format!("/forward?url={}", encode(&upstream.url(path)));
    host.echoes_while_it_is_sent(&target("/echo"));
    stream_through(&host, &target("/echo"), 32 << 20);
    let own = call(&upstream.url("/echo"));
    for (bytes, chunk) in [(1, 1), (100, 10), (100_000, 1_000), (1_000_003, 65_536)] {
        let target = format!("{own}&method=POST&body-bytes={bytes}&chunk={chunk}");
        assert!(host.get(&target).expect(200).body == pattern(bytes));
    }
    assert_eq!(upstream.record().connections, 1);
}

fn no_empty_frame_reaches_a_guest(world: World) {
    for alpn in ["h2", "http/1.1"] {
        let (upstream, host) = pair(world, &[alpn]);
        for target in ["/call?", "/call-part?after=10&"] {
            let target = format!("{target}url={}", encode(&upstream.url("/gaps")));
            let text = host.get(&target).expect(200).text();
            assert!(text == "ab" || text == "dropped\n", "{text:?}");
        }
    }
}

fn an_answer_dropped_over_http_2_harms_no_other(world: World) {
    let (upstream, host) = pair(world, &["h2"]);
    host.get(&call(&upstream.url("/"))).expect(200);
    let mut waiting = host.send("GET", &call(&upstream.url("/slow")), &[], b"");
    for after in [0, 10, 100_000] {
        let url = encode(&upstream.url("/endless"));
        host.get(&format!("/call-part?url={url}&after={after}"))
            .expect(200);
        drop(
            host.send("GET", &call(&upstream.url("/endless")), &[], b"")
                .head(),
        );
    }
    waiting.answer("GET").expect(200);
    host.get(&call(&upstream.url("/"))).expect(200);
    assert_eq!(upstream.record().connections, 1);
}

fn a_client_certificate_is_shown_where_it_was_asked_for(world: World) {
    let authority = Authority::new();
    let scratch = Scratch::new("client-certificate", world);
    let ca = scratch.file("ca.pem", authority.pem().as_bytes());
    let (certificate, key) = authority.sign(&["client.test"]).pem();
    let certificate = scratch.file("client.pem", certificate.as_bytes());
    let key = scratch.file("client.key", key.as_bytes());
    for alpn in ["h2", "http/1.1"] {
        let server = authority.sign(&["127.0.0.1"]);
        let strict = || Upstream::tls(server.server(&[alpn], Some(&authority)));
        let (known, other) = (strict(), strict());
        let identity = format!(
            "https://{}={},{}",
            known.addr,
            certificate.display(),
            key.display()
        );
        let arguments = [
            "--egress-ca",
            ca.to_str().unwrap(),
            "--egress-client-cert",
            &identity,
        ];
        let host = Host::guest(world, "probe", &arguments);
        assert_eq!(host.get(&call(&known.url("/"))).expect(200).text(), "up");
        host.get(&call(&other.url("/"))).expect(502);
        assert_eq!(other.record().requests.len(), 0, "{alpn}");
    }
}

fn sessions_are_resumed(world: World) {
    let (upstream, host) = pair(world, &["http/1.1"]);
    for _ in 0..3 {
        host.get(&call(&upstream.url("/close"))).expect(200);
    }
    let record = upstream.record();
    assert_eq!((record.connections, record.resumed), (3, 2));
}
