//! What guests may reach: the defaults of each deployment, spellings, sockets. The decision itself
//! has its own table beside it.

use crate::harness::{Host, World, call};
use crate::origin::{Origin, answer};

on_both_worlds![
    a_component_alone_may_reach_everything_and_says_so,
    a_pattern_closes_the_rest,
    the_star_means_public_addresses_however_they_are_spelled,
    odd_spellings_are_refused_even_where_everything_is_open,
    other_apps_are_reached_only_where_they_are_listed,
    sockets_reach_what_is_listed,
];

const OPEN: &str = "Outgoing requests may go anywhere";

fn up() -> Origin {
    Origin::answering(&answer("200 OK", &[], "up"))
}

#[track_caller]
fn is_refused(host: &Host, url: &str) {
    let text = host.get(&call(url)).expect(502).text();
    let codes = [
        "http-request-denied",
        "destination-ip-prohibited",
        "http-request-uri-invalid",
    ];
    let code = text.strip_prefix("error: ").unwrap_or_default().trim();
    assert!(codes.contains(&code), "{url}: {text:?}");
}

fn a_component_alone_may_reach_everything_and_says_so(world: World) {
    let origin = up();
    let host = Host::probe(world);
    host.get(&call(&origin.url("/"))).expect(200);
    let told = host.log().all();
    let told: Vec<_> = told.iter().filter(|line| line.contains(OPEN)).collect();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("--egress PATTERN"), "{told:?}");
}

fn a_pattern_closes_the_rest(world: World) {
    let (listed, other) = (up(), up());
    let arguments = [
        "--egress",
        &listed.url(""),
        "--egress",
        "http://127.0.0.2:1",
    ];
    let host = Host::guest(world, "probe", &arguments);
    host.get(&call(&listed.url("/"))).expect(200);
    let port = listed.addr.port();
    is_refused(&host, &other.url("/"));
    is_refused(&host, &format!("https://127.0.0.1:{port}/"));
    is_refused(&host, &format!("http://localhost:{port}/"));
    is_refused(&host, &format!("http://127.0.0.2:{port}/"));
    assert_eq!(
        (listed.record().requests.len(), other.record().connections),
        (1, 0)
    );
    assert!(!host.log().text().contains(OPEN));
    // The reason is in the log, with the pattern that would permit it.
    let remedy = format!("--egress {} would allow it", other.url(""));
    host.log().wait_for(&[&world.app("probe"), &remedy]);
}

/// Names and spellings of 127.0.0.1 and other addresses of this machine and its surroundings.
const INSIDE: [&str; 24] = [
    "127.0.0.1",
    "127.0.0.1.",
    "127.1",
    "0177.0.0.1",
    "0x7f.0.0.1",
    "0x7f000001",
    "2130706433",
    "017700000001",
    "127.000.000.001",
    "%31%32%37.0.0.1",
    "user@127.0.0.1",
    "localhost",
    "LOCALHOST.",
    "0.0.0.0",
    "0",
    "[::]",
    "[::1]",
    "[::127.0.0.1]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[0:0:0:0:0:ffff:127.0.0.1]",
    "[64:ff9b::7f00:1]",
    "[fe80::1%25lo]",
    "169.254.169.254",
];

fn the_star_means_public_addresses_however_they_are_spelled(world: World) {
    let origin = up();
    let port = origin.addr.port();
    let host = Host::guest(world, "probe", &["--egress", "*"]);
    for authority in INSIDE {
        is_refused(&host, &format!("http://{authority}:{port}/"));
    }
    assert_eq!(origin.record().connections, 0);
}

fn odd_spellings_are_refused_even_where_everything_is_open(world: World) {
    let origin = up();
    let port = origin.addr.port();
    let host = Host::probe(world);
    for authority in &INSIDE[2..11] {
        is_refused(&host, &format!("http://{authority}:{port}/"));
    }
    assert_eq!(origin.record().connections, 0);
}

fn other_apps_are_reached_only_where_they_are_listed(world: World) {
    let url = format!("http://{}.internal/hello", world.app("probe"));
    for patterns in [
        &["--egress", "*"][..],
        &["--egress", "http://other.internal"],
    ] {
        let host = Host::guest(world, "probe", patterns);
        let text = host.get(&call(&url)).expect(502).text();
        assert_eq!(text, "error: http-request-denied\n", "{patterns:?}");
    }
    let pattern = url.strip_suffix("/hello").unwrap();
    let host = Host::guest(world, "probe", &["--egress", pattern]);
    host.get(&call(&url)).expect(200);
}

fn sockets_reach_what_is_listed(world: World) {
    let (listed, other) = (Origin::silent(), Origin::silent());
    let target = |origin: &Origin| format!("/socket?addr={}", origin.addr);
    let pattern = listed.url("");
    for patterns in [
        &["--egress", &pattern[..]][..],
        &["--egress", "*", "--egress", &pattern],
    ] {
        let mut arguments = vec!["-S", "inherit-network"];
        arguments.extend(patterns);
        let host = Host::guest(world, "probe", &arguments);
        assert_eq!(host.get(&target(&listed)).expect(200).text(), "ok\n");
        let text = host.get(&target(&other)).expect(200).text();
        assert!(text.starts_with("error: "), "{text:?}");
    }
    assert_eq!(
        (listed.record().connections, other.record().connections),
        (2, 0)
    );
}

/// `host serve` alone: the servlet reaches the remote in process and what is listed besides.
#[test]
fn the_house_guests_reach_each_other_and_what_is_listed() {
    let origin = up();
    let target = |url: &str| format!("/localApp/async?delay=0&code=200&remoteUrl={url}");
    let house = Host::start::<&str>(&[]);
    house.get(&target("http://remote.internal")).expect(200);
    for url in [
        &origin.url("")[..],
        "http://servlet.internal",
        "http://example.com",
    ] {
        house.get(&target(url)).expect(403);
    }
    let open = Host::start(&["--egress", &origin.url("")]);
    open.get(&target("http://remote.internal")).expect(200);
    open.get(&target(&origin.url(""))).expect(200);
    open.get(&target("http://example.com")).expect(403);
    assert_eq!(origin.record().requests.len(), 1);
    for host in [&house, &open] {
        assert!(!host.log().text().contains(OPEN));
    }
}
