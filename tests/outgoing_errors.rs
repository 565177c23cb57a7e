//! The table from what can go wrong with an upstream to the guest's `error-code`.

use crate::dns::Dns;
use crate::harness::{Host, Scratch, World, call, encode};
use crate::origin::{Origin, answer, closed_port, full_backlog};
use crate::upstream::{Authority, Upstream};
use std::io::Read;
use std::time::{Duration, Instant};

on_both_worlds![
    each_failure_has_its_error_code,
    deadlines_of_the_command_line_hold_whatever_the_guest_asks_for,
    names_are_resolved_once_and_checked_twice,
];

/// Reads what comes first and sends these bytes, as no server with TLS would.
fn no_tls(bytes: &'static [u8]) -> Origin {
    Origin::serve(move |visit| {
        let _ = visit.wire.socket().read(&mut [0; 4096]);
        visit.wire.send(bytes);
        // Closed with something unread, a socket would reset the connection.
        let _ = visit.wire.socket().read(&mut [0; 4096]);
    })
}

fn https(origin: &Origin) -> String {
    format!("https://{}/", origin.addr)
}

/// What each target is answered with, all that differ together.
#[track_caller]
fn fail_as(host: &Host, rows: &[(String, &str)]) {
    let problems: Vec<String> = rows
        .iter()
        .filter_map(|(target, expected)| {
            let answer = host.get(target);
            let text = answer.text();
            let found = text.strip_prefix("error: ").unwrap_or(&text).trim();
            let is_right = answer.status() == 502 && found == *expected;
            (!is_right).then(|| format!("{target}: {expected} expected, found {found}"))
        })
        .collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

fn each_failure_has_its_error_code(world: World) {
    let dns = Dns::start();
    let scratch = Scratch::new("errors", world);
    let authority = Authority::new();
    let ca = scratch.file("ca.pem", authority.pem().as_bytes());
    let [dns_flag, dns_server] = dns.flag();
    let arguments = [
        &dns_flag,
        &dns_server,
        "--egress-ca",
        ca.to_str().unwrap(),
        "--egress",
        "*.test",
        "--egress",
        "127.0.0.0/8",
        "--egress",
        "255.255.255.255/32",
        "--max-connections-per-upstream",
        "1",
    ];
    let host = Host::guest(world, "probe", &arguments);

    let backlog = full_backlog();
    let silent = Origin::silent();
    let held = Origin::silent();
    let _holding = host.send("GET", &call(&held.url("/")), &[], b"");
    held.wait(|record| record.requests.len() == 1);
    let closing = Origin::serve(|visit| drop(visit.request()));
    let broken = Origin::answering_once("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc");
    let stuck = Origin::stopping_after(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc");
    let garbage = Origin::answering(b"SSH-2.0-something\r\n\r\n");
    let plain = no_tls(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
    // A fatal alert, handshake_failure.
    let alert = no_tls(&[0x15, 3, 3, 0, 2, 2, 40]);
    let unknown = Upstream::tls(Authority::new().server(&["http/1.1"]));
    let misnamed = Upstream::tls(authority.sign(&["other.test"]).server(&["http/1.1"], None));
    let expired = authority.sign_until(&["127.0.0.1"], 2001);
    let expired = Upstream::tls(expired.server(&["http/1.1"], None));
    let strict = authority.sign(&["127.0.0.1"]);
    let strict = Upstream::tls(strict.server(&["http/1.1"], Some(&authority)));

    let address = |text: &str| call(&format!("http://{text}/"));
    let part = |origin: &Origin, more: &str| {
        format!(
            "/call-part?url={}&after=1000{more}",
            encode(&origin.url("/"))
        )
    };
    let after = |target: String, more: &str| format!("{target}&{more}");
    let rows = [
        (address("absent.test"), "dns-error NXDOMAIN"),
        (address("broken.test"), "dns-error SERVFAIL"),
        (address("empty.test"), "destination-not-found"),
        (
            after(address("silent.test"), "connect-ms=500"),
            "dns-timeout",
        ),
        (address(&closed_port().to_string()), "connection-refused"),
        (
            after(address(&backlog.1.to_string()), "connect-ms=300"),
            "connection-timeout",
        ),
        (address("255.255.255.255"), "destination-unavailable"),
        (
            after(call(&held.url("/")), "connect-ms=300"),
            "connection-limit-reached",
        ),
        (call(&unknown.url("/")), "tls-certificate-error"),
        (call(&misnamed.url("/")), "tls-certificate-error"),
        (call(&expired.url("/")), "tls-certificate-error"),
        (call(&https(&plain)), "tls-protocol-error"),
        (call(&https(&alert)), "tls-alert-received HandshakeFailure"),
        (
            call(&strict.url("/")),
            "tls-alert-received CertificateRequired",
        ),
        (
            after(call(&silent.url("/")), "first-byte-ms=300"),
            "http-response-timeout",
        ),
        (
            part(&stuck, "&between-bytes-ms=300"),
            "connection-read-timeout",
        ),
        (part(&broken, ""), "connection-terminated"),
        (
            after(call(&closing.url("/")), "method=POST"),
            "connection-terminated",
        ),
        (call(&garbage.url("/")), "http-protocol-error"),
        (address("other.example"), "http-request-denied"),
        (address("10.0.0.1"), "http-request-denied"),
        (address("private.test"), "destination-ip-prohibited"),
        (address("metadata.test"), "destination-ip-prohibited"),
        (address("translated.test"), "destination-ip-prohibited"),
        (address("user@127.0.0.1"), "http-request-uri-invalid"),
        (address("127.0.0.1:0"), "http-request-uri-invalid"),
    ];
    fail_as(&host, &rows);

    // The loop is in what the probe was asked, not in what it asks.
    let passes = [
        "CDN-Loop: host, host;v=1, HOST, host",
        "CDN-Loop: host,host,host,host",
    ];
    let text = host
        .ask("GET", &call(&silent.url("/")), &passes, b"")
        .expect(502)
        .text();
    assert_eq!(text, "error: loop-detected\n");
    assert_eq!(silent.record().requests.len(), 1);
}

fn deadlines_of_the_command_line_hold_whatever_the_guest_asks_for(world: World) {
    let dns = Dns::start();
    let [dns_flag, dns_server] = dns.flag();
    let flags = [
        "--connect-timeout",
        "--first-byte-timeout",
        "--between-bytes-timeout",
    ];
    let mut arguments = vec![&dns_flag[..], &dns_server[..]];
    arguments.extend(flags.iter().flat_map(|flag| [*flag, "300ms"]));
    let host = Host::guest(world, "probe", &arguments);
    let backlog = full_backlog();
    let silent = Origin::silent();
    let stuck = Origin::stopping_after(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc");
    let longer = "connect-ms=60000&first-byte-ms=60000&between-bytes-ms=60000";
    for more in ["", longer] {
        let begun = Instant::now();
        let part = format!("/call-part?after=1000&url={}", encode(&stuck.url("/")));
        let rows = [
            (call("http://silent.test/"), "dns-timeout"),
            (
                call(&format!("http://{}/", backlog.1)),
                "connection-timeout",
            ),
            (call(&silent.url("/")), "http-response-timeout"),
            (part, "connection-read-timeout"),
        ];
        fail_as(
            &host,
            &rows.map(|(target, code)| (format!("{target}&{more}"), code)),
        );
        let took = begun.elapsed();
        let expected = Duration::from_millis(1_200)..Duration::from_secs(5);
        assert!(expected.contains(&took), "{took:?}");
    }
}

fn names_are_resolved_once_and_checked_twice(world: World) {
    let dns = Dns::start();
    let origin = Origin::answering(&answer("200 OK", &[], "up"));
    let port = origin.addr.port();
    let url = |name: &str| call(&format!("http://{name}:{port}/"));
    let host = |patterns: &[&str]| {
        let [flag, server] = dns.flag();
        let mut arguments = vec![&flag[..], &server[..]];
        arguments.extend(patterns.iter().flat_map(|pattern| ["--egress", pattern]));
        Host::guest(world, "probe", &arguments)
    };

    let any_port = format!("*.test:{port}");
    let by_name = host(&[&any_port]);
    let prohibited = ["up.test", "dual.test", "mapped.test"];
    fail_as(
        &by_name,
        &prohibited.map(|name| (url(name), "destination-ip-prohibited")),
    );
    let by_address = host(&["127.0.0.0/8"]);
    fail_as(&by_address, &[(url("up.test"), "http-request-denied")]);
    assert_eq!(origin.record().connections, 0);

    let both = host(&[&any_port, "127.0.0.1/32"]);
    let known = dns.times_asked("up.test");
    for name in ["up.test", "UP.test", "up.test.", "dual.test", "mapped.test"] {
        assert_eq!(both.get(&url(name)).expect(200).text(), "up", "{name}");
        let record = origin.record();
        let seen = record.requests.last().unwrap();
        assert_eq!(seen.head.all("host"), [format!("{name}:{port}")]);
    }
    assert_eq!(dns.times_asked("up.test"), known + 1);
    // The first address of a name with two is refused here, and the second one is tried.
    let all = host(&[&any_port, "127.0.0.1/32", "::1/128"]);
    assert_eq!(all.get(&url("dual.test")).expect(200).text(), "up");
}
