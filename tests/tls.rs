//! TLS and HTTP/2 towards clients.

use crate::client::{Client, Tls};
use crate::harness::{Host, Scratch, World};
use crate::upstream::{Authority, Identity};
use rustix::process::Signal;
use std::time::{Duration, Instant};

on_both_worlds![
    both_versions_of_http_are_served_under_tls,
    a_certificate_is_chosen_by_name,
    certificates_are_read_again_when_they_change,
    a_client_certificate_is_asked_for_and_checked,
    who_says_nothing_is_not_waited_for,
    http_2_is_served_without_tls_to_who_knows,
    streams_of_one_connection_are_served_side_by_side,
    a_reset_stream_ends_its_guest_and_no_other,
    a_failure_after_the_head_resets_its_stream,
    a_client_that_leaves_under_tls_ends_its_guest,
    a_drain_answers_what_has_begun_over_http_2,
];

const BOTH: &[&str] = &["h2", "http/1.1"];

/// A host with a certificate for each list of names, and who signed them.
struct Secure {
    host: Host,
    authority: Authority,
    scratch: Scratch,
}

impl Secure {
    fn start(test: &str, world: World, certificates: &[&[&str]], more: &[&str]) -> Secure {
        let authority = Authority::new();
        let scratch = Scratch::new(test, world);
        let mut arguments = Vec::new();
        for (number, names) in certificates.iter().enumerate() {
            let files = write(&scratch, number, &authority.sign(names));
            for (flag, file) in ["--tls-cert", "--tls-key"].into_iter().zip(files) {
                arguments.extend([flag.to_owned(), file]);
            }
        }
        arguments.extend(more.iter().map(ToString::to_string));
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        Secure {
            host: Host::guest(world, "probe", &arguments),
            authority,
            scratch,
        }
    }

    fn connect(&self, name: &str, alpn: &[&str]) -> Client {
        self.try_connect(name, alpn, None).unwrap()
    }

    fn try_connect(
        &self,
        name: &str,
        alpn: &[&str],
        identity: Option<&Identity>,
    ) -> Result<Client, String> {
        let trust = &self.authority;
        let tls = Tls {
            trust,
            name,
            alpn,
            identity,
        };
        Client::tls(self.host.addr, &tls)
    }
}

fn write(scratch: &Scratch, number: usize, identity: &Identity) -> [String; 2] {
    let (certificate, key) = identity.pem();
    [("cert", certificate), ("key", key)].map(|(name, pem)| {
        let file = scratch.file(&format!("{name}-{number}.pem"), pem.as_bytes());
        file.display().to_string()
    })
}

fn both_versions_of_http_are_served_under_tls(world: World) {
    let secure = Secure::start("tls-versions", world, &[&["localhost"]], &[]);
    for (alpn, http2) in [(BOTH, true), (&["http/1.1"][..], false), (&[], false)] {
        let mut client = secure.connect("localhost", alpn);
        assert_eq!(client.is_http2(), http2, "{alpn:?}");
        let seen = client.ask("GET", "/headers?a=b", b"").unwrap();
        let authority = format!("authority: localhost:{}\n", secure.host.addr.port());
        for part in ["scheme: https\n", &authority, "path: /headers?a=b\n"] {
            assert!(seen.text.contains(part), "no {part:?} in {}", seen.text);
        }
        let body = "x".repeat(100_000);
        assert_eq!(
            client.ask("POST", "/echo", body.as_bytes()).unwrap().text,
            body
        );
        assert_eq!(client.ask("GET", "/trap", b"").unwrap().status, 500);
        assert_eq!(client.ask("GET", "/hello", b"").unwrap().status, 200);
    }
}

fn a_certificate_is_chosen_by_name(world: World) {
    let certificates: [&[&str]; 2] = [&["a.test", "other.test"], &["*.b.test"]];
    let secure = Secure::start("tls-names", world, &certificates, &[]);
    for name in ["a.test", "other.test", "x.b.test"] {
        let mut client = secure.connect(name, BOTH);
        assert_eq!(
            client.ask("GET", "/hello", b"").unwrap().status,
            200,
            "{name}"
        );
    }
    // Of no name that is known, the first one is shown, which the client does not accept.
    assert!(secure.try_connect("c.test", BOTH, None).is_err());
}

fn certificates_are_read_again_when_they_change(world: World) {
    let secure = Secure::start("tls-reload", world, &[&["localhost"]], &[]);
    let mut before = secure.connect("localhost", BOTH);
    let [certificate, key] = write(&secure.scratch, 0, &secure.authority.sign(&["localhost"]));
    let old = before.certificate.clone();
    secure.host.log().wait_for(&["TLS certificates read again"]);
    assert_ne!(secure.connect("localhost", BOTH).certificate, old);
    assert_eq!(before.ask("GET", "/hello", b"").unwrap().status, 200);
    // What cannot be read changes nothing.
    std::fs::write(&key, "no key").unwrap();
    secure
        .host
        .log()
        .wait_for(&["TLS certificates not read again", &key]);
    let mut after = secure.connect("localhost", BOTH);
    assert_eq!(after.ask("GET", "/hello", b"").unwrap().status, 200);
    assert!(std::fs::exists(certificate).unwrap());
}

fn a_client_certificate_is_asked_for_and_checked(world: World) {
    let clients = Authority::new();
    let scratch = Scratch::new("tls-clients-roots", world);
    let roots = scratch.file("clients.pem", clients.pem().as_bytes());
    let more = ["--tls-client-ca", roots.to_str().unwrap()];
    let secure = Secure::start("tls-clients", world, &[&["localhost"]], &more);
    let known = clients.sign(&["client"]);
    let mut client = secure.try_connect("localhost", BOTH, Some(&known)).unwrap();
    assert_eq!(client.ask("GET", "/hello", b"").unwrap().status, 200);
    let stranger = Authority::new().sign(&["client"]);
    for identity in [None, Some(&stranger)] {
        // In TLS 1.3 the client learns of it with what it reads first.
        let asked = secure.try_connect("localhost", BOTH, identity);
        let asked = asked.and_then(|mut client| client.ask("GET", "/hello", b""));
        assert!(asked.is_err(), "{asked:?}");
    }
}

fn who_says_nothing_is_not_waited_for(world: World) {
    let more = ["--header-timeout", "300ms"];
    let secure = Secure::start("tls-silent", world, &[&["localhost"]], &more);
    let mut silent: Vec<_> = (0..500).map(|_| secure.host.connect()).collect();
    let mut client = secure.connect("localhost", BOTH);
    assert_eq!(client.ask("GET", "/hello", b"").unwrap().status, 200);
    for wire in &mut silent {
        assert!(wire.at_end());
    }
}

fn http_2_is_served_without_tls_to_who_knows(world: World) {
    let host = Host::probe(world);
    let mut client = Client::plain_http2(host.addr);
    let seen = client.ask("GET", "/headers", b"").unwrap();
    assert!(seen.text.contains("scheme: http\n"), "{}", seen.text);
    let trailers = client.ask("GET", "/trailers", b"").unwrap().trailers;
    assert_eq!(trailers.get("x-checksum").unwrap(), "123");
    let body = "y".repeat(300_000);
    assert_eq!(
        client.ask("POST", "/copy", body.as_bytes()).unwrap().text,
        body
    );
    // HTTP/1.1 goes on beside it.
    host.get("/hello").expect(200);
}

fn streams_of_one_connection_are_served_side_by_side(world: World) {
    let host = Host::probe(world);
    let mut client = Client::plain_http2(host.addr);
    let begun = Instant::now();
    let answers: Vec<_> = (0..50)
        .map(|_| client.send("GET", "/sleep?ms=500", b""))
        .collect();
    client.runtime.block_on(async {
        for answer in futures::future::join_all(answers).await {
            assert_eq!(answer.unwrap().status(), 200);
        }
    });
    // One after the other they would take 25 s.
    assert!(begun.elapsed() < Duration::from_secs(15));
}

fn a_reset_stream_ends_its_guest_and_no_other(world: World) {
    let host = Host::probe(world);
    let mut client = Client::plain_http2(host.addr);
    let never = client.send("GET", "/never", b"");
    let other = client.send("GET", "/sleep?ms=1000", b"");
    let status = client.runtime.block_on(async {
        let never = tokio::time::timeout(Duration::from_millis(300), never);
        assert!(never.await.is_err(), "/never has answered");
        other.await.unwrap().status()
    });
    assert_eq!(status, 200);
    host.log().wait_for(&["client closed", &world.app("probe")]);
}

fn a_failure_after_the_head_resets_its_stream(world: World) {
    let host = Host::probe(world);
    let mut client = Client::plain_http2(host.addr);
    for target in [
        "/trap-after-headers?bytes=100",
        "/short-length?declare=10&send=5",
    ] {
        let got = client.ask("GET", target, b"");
        assert!(
            got.as_ref().is_err() || got.as_ref().is_ok_and(|got| got.status == 500),
            "{target}: {got:?}"
        );
    }
    assert_eq!(client.ask("GET", "/hello", b"").unwrap().status, 200);
}

fn a_client_that_leaves_under_tls_ends_its_guest(world: World) {
    let secure = Secure::start("tls-gone", world, &[&["localhost"]], &[]);
    for alpn in [&["h2"][..], &["http/1.1"]] {
        let mut client = secure.connect("localhost", alpn);
        let never = client.send("GET", "/never", b"");
        client.runtime.block_on(async {
            let never = tokio::time::timeout(Duration::from_millis(300), never);
            assert!(never.await.is_err(), "/never has answered");
        });
        drop(client);
    }
    let log = secure.host.log();
    log.wait("two guests that ended", |lines| {
        let closed = lines.iter().filter(|line| line.contains("client closed"));
        (closed.count() == 2).then_some(())
    });
}

fn a_drain_answers_what_has_begun_over_http_2(world: World) {
    let mut host = Host::probe(world);
    let mut client = Client::plain_http2(host.addr);
    let slow = client.send("GET", "/sleep?ms=1000", b"");
    let slow = client.runtime.spawn(slow);
    host.get("/sleep?ms=300").expect(200);
    host.process.signal(Signal::TERM);
    let answer = client.runtime.block_on(slow).unwrap();
    assert_eq!(answer.unwrap().status(), 200);
    assert_eq!(host.process.exit_code(), 0);
}
