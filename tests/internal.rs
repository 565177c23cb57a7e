//! Calls from one app to another of the same host: no socket, the semantics of TCP.

use crate::harness::{Host, World, call, encode};
use crate::origin::Origin;
use crate::wire::End;

on_both_worlds![
    an_app_calls_another_in_process,
    an_unknown_app_is_an_error,
    bodies_stream_both_ways_in_process,
    trailers_pass_in_process,
    a_failure_in_process_looks_as_it_would_over_tcp,
    an_inner_request_takes_no_second_permit,
    the_depth_is_bounded,
    a_client_that_leaves_ends_the_inner_guest,
];

fn url(world: World, target: &str) -> String {
    format!("http://{}.internal{target}", world.app("probe"))
}

fn an_app_calls_another_in_process(world: World) {
    let host = Host::probe(world);
    assert_eq!(
        host.get(&call(&url(world, "/hello"))).expect(200).text(),
        "probe\n"
    );
    let told = host
        .get(&call(&url(world, "/headers?a=%2F")))
        .expect(200)
        .text();
    assert!(
        told.contains(&format!("authority: {}.internal\n", world.app("probe"))),
        "{told}"
    );
    assert!(told.contains("path: /headers?a=%2F\n"), "{told}");
    let length = host
        .get(&call(&url(world, "/stream?bytes=100000&length=1")))
        .expect(200);
    assert_eq!(length.body.len(), 100_000);
    host.get(&call(&url(world, "/status?code=404"))).expect(404);
    host.get(&call(&url(world, "/status?code=204"))).expect(204);
}

fn an_unknown_app_is_an_error(world: World) {
    let host = Host::probe(world);
    for name in ["nobody.internal", "internal", "x.probe.internal"] {
        let answer = host.get(&call(&format!("http://{name}/"))).expect(502);
        assert!(
            answer.text().starts_with("error: "),
            "{name}: {}",
            answer.text()
        );
    }
}

fn bodies_stream_both_ways_in_process(world: World) {
    let target = format!("/forward?url={}", encode(&url(world, "/echo")));
    Host::probe(world).echoes_while_it_is_sent(&target);
}

fn trailers_pass_in_process(world: World) {
    let host = Host::probe(world);
    let answer = host
        .ask(
            "GET",
            &call(&url(world, "/trailers")),
            &["TE: trailers"],
            b"",
        )
        .expect(200);
    assert_eq!(
        (answer.text().as_str(), answer.trailer("x-checksum")),
        ("body\n", Some("123"))
    );
}

fn a_failure_in_process_looks_as_it_would_over_tcp(world: World) {
    let host = Host::probe(world);
    host.get(&call(&url(world, "/trap"))).expect(500);
    host.get(&call(&url(world, "/return"))).expect(500);
    let target = call(&url(world, "/trap-after-headers?bytes=1000"));
    let answer = host.send("GET", &target, &[], b"").answer("GET");
    assert_eq!((answer.status(), answer.end), (200, End::Cut));
    assert_eq!(answer.body.len(), 1000);
}

fn an_inner_request_takes_no_second_permit(world: World) {
    let arguments = ["--max-concurrent-requests", "1", "--request-queue", "0"];
    let host = Host::guest(world, "probe", &arguments);
    let target = call(&url(world, &call(&url(world, "/hello"))));
    assert_eq!(host.get(&target).expect(200).text(), "probe\n");
}

/// A hundred calls, each inside the one before. An address that is the rest of its query needs no
/// escapes, so the target stays short.
fn the_depth_is_bounded(world: World) {
    let host = Host::probe(world);
    let nested = |depth: usize| url(world, "/call?url=").repeat(depth) + &url(world, "/hello");
    let target = |depth: usize| format!("/call?url={}", nested(depth));
    assert_eq!(host.get(&target(3)).expect(200).text(), "probe\n");
    let answer = host.get(&target(100));
    assert_eq!(answer.end, End::Whole);
    assert!(
        matches!(answer.status(), 500..600),
        "{} {}",
        answer.status(),
        answer.text()
    );
    host.get("/hello").expect(200);
}

fn a_client_that_leaves_ends_the_inner_guest(world: World) {
    let origin = Origin::silent();
    let host = Host::probe(world);
    let client = host.send("GET", &call(&url(world, &call(&origin.url("/")))), &[], b"");
    origin.wait(|record| record.requests.len() == 1);
    drop(client);
    origin.wait(|record| record.closed == 1);
}
