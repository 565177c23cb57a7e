//! A client that leaves takes its guest along; a client that only stops sending does not.

use crate::harness::{Host, World, call, encode};
use crate::origin::{Origin, answer};

on_both_worlds![
    a_guest_that_waits_for_an_upstream_ends_with_its_client,
    a_guest_that_sleeps_ends_with_its_client,
    a_guest_that_spins_ends_with_its_client,
    a_guest_that_streams_ends_with_its_client,
    a_client_that_leaves_after_its_body_ends_its_upstream_call,
    a_neighbour_of_a_client_that_left_is_answered,
    a_half_closed_client_is_answered,
    a_half_closed_client_with_a_body_is_answered,
];

fn a_guest_that_waits_for_an_upstream_ends_with_its_client(world: World) {
    let origin = Origin::silent();
    let host = Host::probe(world);
    let client = host.send("GET", &call(&origin.url("/")), &[], b"");
    origin.wait(|record| record.requests.len() == 1);
    drop(client);
    origin.wait(|record| record.closed == 1);
    host.log().wait_for(&["client closed", &world.app("probe")]);
}

/// Another client's answer stands between the request and the close; should the close overtake the
/// guest's start all the same, the line is due no less.
fn ends_with_its_client(world: World, target: &str) {
    let host = Host::guest(
        world,
        "probe",
        &["--max-instance-concurrent-reuse-count", "1"],
    );
    let client = host.send("GET", target, &[], b"");
    host.get("/hello").expect(200);
    drop(client);
    host.log().wait_for(&["client closed", &world.app("probe")]);
    host.get("/hello").expect(200);
}

fn a_guest_that_sleeps_ends_with_its_client(world: World) {
    ends_with_its_client(world, "/sleep?ms=600000");
}

fn a_guest_that_spins_ends_with_its_client(world: World) {
    ends_with_its_client(world, "/spin?ms=600000");
}

fn a_guest_that_streams_ends_with_its_client(world: World) {
    let host = Host::probe(world);
    let mut client = host.send("GET", "/stream?bytes=1000000&chunk=100&every=20", &[], b"");
    assert_eq!(client.head().expect("a head").status(), 200);
    assert_eq!(client.chunked_bytes(100).len() % 100, 0);
    drop(client);
    host.log().wait_for(&["client closed", &world.app("probe")]);
}

fn a_client_that_leaves_after_its_body_ends_its_upstream_call(world: World) {
    let origin = Origin::silent();
    let host = Host::probe(world);
    let target = format!("/forward?url={}", encode(&origin.url("/")));
    let client = host.send("POST", &target, &[], b"the whole body");
    origin.wait(|record| record.requests.len() == 1);
    drop(client);
    origin.wait(|record| record.closed == 1);
}

fn a_neighbour_of_a_client_that_left_is_answered(world: World) {
    let silent = Origin::silent();
    let held = Origin::answering_when_released(&answer("200 OK", &[], "stayed"));
    let host = Host::probe(world);
    let mut stays = host.send("GET", &call(&held.url("/")), &[], b"");
    held.wait(|record| record.requests.len() == 1);
    let leaves = host.send("GET", &call(&silent.url("/")), &[], b"");
    silent.wait(|record| record.requests.len() == 1);
    drop(leaves);
    silent.wait(|record| record.closed == 1);
    held.release();
    assert_eq!(stays.answer("GET").expect(200).text(), "stayed");
    assert_eq!(held.record().requests.len(), 1);
}

fn a_half_closed_client_is_answered(world: World) {
    let origin = Origin::answering_when_released(&answer("200 OK", &[], "late"));
    let host = Host::probe(world);
    let mut client = host.send("GET", &call(&origin.url("/")), &[], b"");
    origin.wait(|record| record.requests.len() == 1);
    client.finish_sending();
    // Long enough for the host to take notice: other requests come and go meanwhile.
    host.get("/sleep?ms=300").expect(200);
    origin.release();
    assert_eq!(client.answer("GET").expect(200).text(), "late");
    assert_eq!(origin.record().requests.len(), 1);
}

fn a_half_closed_client_with_a_body_is_answered(world: World) {
    let host = Host::probe(world);
    let mut client = host.send("POST", "/echo", &[], b"body");
    client.finish_sending();
    assert_eq!(client.answer("POST").expect(200).text(), "body");

    let mut client = host.send("GET", "/stream?bytes=5000&chunk=500&every=30", &[], b"");
    client.finish_sending();
    assert_eq!(client.answer("GET").expect(200).body.len(), 5000);
}
