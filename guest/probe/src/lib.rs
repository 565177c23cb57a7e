//! The test guest: the path picks the behaviour. [`HELP`] lists the paths.

mod bodies;
mod calls;
mod failures;
mod world;

use guest_http::{ErrorCode, Query, Request, Response};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

guest_http::serve!("house:guests/probe", answer);

/// Every path, with its parameters.
const HELP: &str = "\
/hello                    answers `probe`
/counter                  how many requests this instance has been given
/headers                  the request as the guest sees it
/set-header               name value: sets that response header, or says why not
/big-headers              bytes: that much in response headers, or says why not
/status                   code: answers with it
/echo                     the body as it arrives, and its trailers
/copy                     the same, through the guest's memory
/read                     reads the body, answers `BYTES FNV1A64`
/wait-read                ms: sleeps first
/drop-body                after: reads that many bytes, drops the rest, answers
/stream                   bytes chunk every length=1: byte number i is i % 251
/events                   count every: server-sent events
/trailers                 a body with two trailers
/short-length             declare send: a content-length that is not true
/call                     url method connect-ms first-byte-ms between-bytes-ms
                          body-bytes chunk every cut header=NAME:VALUE…
                          trailer=NAME:VALUE…: calls and relays; its body breaks
                          off before it is longer than cut
/call-part                the same and after: reads that many bytes of the
                          answer, drops the rest, answers
/call-drop                url ms: calls, and drops the call after that time
/forward                  url: sends the request on and relays the answer
/background               ms url: answers, then waits, then calls
/trap                     executes `unreachable`
/trap-after-headers       bytes: the same, once these have been sent
/panic                    panics
/exit                     code: ends the program
/return                   returns without an answer
/never                    neither answers nor returns
/sleep                    ms: waits, then answers
/spin                     ms: computes, then answers
/allocate                 bytes: touches that much memory
/random                   eight bytes, in hexadecimal
/env                      the environment
/dir                      path: reads that file
/log                      stdout stderr: writes these lines
/socket                   addr: connects to it
";

async fn answer(request: Request) -> Result<Response, ErrorCode> {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let count = COUNTER.fetch_add(1, Ordering::Relaxed) + 1;

    let target = request.target();
    let (path, query) = Query::split(&target);
    let asked = Asked(query);
    Ok(match path {
        "/hello" => Response::text(200, "probe\n"),
        "/counter" => Response::text(200, format!("{count}\n")),

        "/headers" => bodies::headers(&request),
        "/set-header" => bodies::set_header(&asked),
        "/big-headers" => bodies::big_headers(&asked),
        "/status" => bodies::status(&asked),
        "/echo" => bodies::echo(request),
        "/copy" => bodies::copy(request),
        "/read" => bodies::read(request).await?,
        "/wait-read" => {
            guest_http::sleep(asked.time("ms").unwrap_or_default()).await;
            bodies::read(request).await?
        }
        "/drop-body" => bodies::drop_body(request, &asked).await?,
        "/stream" => bodies::stream(&asked),
        "/events" => bodies::events(&asked),
        "/trailers" => bodies::trailers(),
        "/short-length" => bodies::short_length(&asked),

        "/call" => calls::call(&asked).await,
        "/call-part" => calls::call_part(&asked).await,
        "/call-drop" => calls::call_drop(&asked).await,
        "/forward" => calls::forward(request, &asked).await,
        "/background" => calls::background(&asked),

        "/trap" => failures::trap(),
        "/trap-after-headers" => failures::trap_after_headers(&asked),
        "/panic" => panic!("probe panics on purpose"),
        "/exit" => std::process::exit(asked.number("code").unwrap_or(0)),
        "/return" => return Err(ErrorCode::InternalError(Some("no answer".into()))),
        "/never" => failures::never().await,

        "/sleep" => world::sleep(&asked).await,
        "/spin" => world::spin(&asked),
        "/allocate" => world::allocate(&asked),
        "/random" => Response::text(200, format!("{:016x}\n", guest_http::random())),
        "/env" => world::env(),
        "/dir" => world::dir(&asked),
        "/log" => world::log(&asked),
        "/socket" => world::socket(&asked),
        _ => Response::text(404, HELP),
    })
}

/// The parameters of a request. What is missing or unreadable is `None`: tests
/// know what they ask for.
struct Asked(Query);

impl Asked {
    fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name)
    }

    fn number<T: std::str::FromStr>(&self, name: &str) -> Option<T> {
        self.text(name)?.parse().ok()
    }

    fn time(&self, name: &str) -> Option<Duration> {
        self.number(name).map(Duration::from_millis)
    }
}
