//! How a request ended.
//!
//! [`Kind`] is the closed list of endings that are not the guest's own answer,
//! and the one table from an ending to the status and the sentence that the
//! client gets. The log gets the cause and the backtrace as well; the client
//! never does.

use http::StatusCode;
use std::fmt;

/// What went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The request is not one that HTTP allows.
    BadRequest,
    /// `CONNECT`, RFC 9110 section 9.3.6, and WebSocket.
    NotSupported,
    /// Method, target and version are too long.
    RequestLineTooLong,
    /// The body of the request is larger than it may be.
    BodyTooLarge,
    /// The body of the request did not go on.
    BodyTimeout,
    /// No app serves this path.
    NoRoute,
    /// All permits and all places in the queue are taken.
    Overloaded,
    /// No instance could be made, because a pool of the engine is exhausted.
    NoInstance,
    /// The guest could not be started.
    Instantiation,
    /// The guest trapped.
    Trap,
    /// The guest returned without an answer, or with an error.
    NoAnswer,
    /// Another request in the same instance trapped.
    InstanceLost,
    /// The guest computed for longer than it may.
    Computing,
    /// The guest did not answer in time.
    Deadline,
    /// The body of the answer ended in an error.
    BrokenBody,
}

impl Kind {
    /// The status that stands for this ending, where no answer has left yet.
    pub fn status(self) -> StatusCode {
        match self {
            Kind::BadRequest => StatusCode::BAD_REQUEST,
            Kind::RequestLineTooLong => StatusCode::URI_TOO_LONG,
            Kind::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Kind::BodyTimeout => StatusCode::REQUEST_TIMEOUT,
            Kind::NoRoute => StatusCode::NOT_FOUND,
            Kind::NotSupported => StatusCode::NOT_IMPLEMENTED,
            Kind::Overloaded | Kind::NoInstance | Kind::Computing => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Kind::Deadline => StatusCode::GATEWAY_TIMEOUT,
            Kind::Instantiation
            | Kind::Trap
            | Kind::NoAnswer
            | Kind::InstanceLost
            | Kind::BrokenBody => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// What the client is told. What is the client's to mend has its cause
    /// added to this.
    pub fn sentence(self) -> &'static str {
        match self {
            Kind::BadRequest => "The request is not valid",
            Kind::NotSupported => "This is not supported here",
            Kind::RequestLineTooLong => "The request line is too long",
            Kind::BodyTooLarge => "The body of the request is too large",
            Kind::BodyTimeout => "The body of the request did not go on",
            Kind::NoRoute => "Nothing is served here",
            Kind::Overloaded => "The server has as many requests as it takes; try again",
            Kind::NoInstance => "The server has no room for another instance; try again",
            Kind::Instantiation => "The application could not be started",
            Kind::Trap => "The application failed",
            Kind::NoAnswer => "The application gave no answer",
            Kind::InstanceLost => "The application failed while it served another request",
            Kind::Computing => "The application computed for too long",
            Kind::Deadline => "The application did not answer in time",
            Kind::BrokenBody => "The answer could not be completed",
        }
    }

    /// Whether this is the guest's or the host's fault, and not the client's.
    pub fn is_trouble(self) -> bool {
        self.status().is_server_error() && self != Kind::NotSupported
    }

    /// Whether the same request may go well a little later.
    pub fn passes(self) -> bool {
        matches!(self, Kind::Overloaded | Kind::NoInstance)
    }

    /// The word for the log and, later, for metrics.
    pub fn word(self) -> &'static str {
        match self {
            Kind::BadRequest => "bad-request",
            Kind::NotSupported => "not-supported",
            Kind::RequestLineTooLong => "request-line-too-long",
            Kind::BodyTooLarge => "body-too-large",
            Kind::BodyTimeout => "body-timeout",
            Kind::NoRoute => "no-route",
            Kind::Overloaded => "overloaded",
            Kind::NoInstance => "no-instance",
            Kind::Instantiation => "instantiation-failed",
            Kind::Trap => "trap",
            Kind::NoAnswer => "no-answer",
            Kind::InstanceLost => "instance-lost",
            Kind::Computing => "cpu-limit",
            Kind::Deadline => "deadline",
            Kind::BrokenBody => "broken-body",
        }
    }
}

/// An ending with its cause.
#[derive(Clone, Debug)]
pub struct Failure {
    pub kind: Kind,
    /// One line.
    pub cause: String,
    /// The frames of the guest's stack, one per line, where it trapped.
    pub backtrace: Option<String>,
}

impl Failure {
    pub fn new(kind: Kind, cause: impl fmt::Display) -> Self {
        Self {
            kind,
            cause: cause.to_string().replace(['\r', '\n'], " "),
            backtrace: None,
        }
    }
}

/// As the log shows it: one line, then the backtrace, indented.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind.word(), self.cause)?;
        for frame in self.backtrace.iter().flat_map(|text| text.lines()) {
            write!(f, "\n    {}", frame.trim())?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_line_stays_one_line_whatever_a_guest_puts_into_its_cause() {
        let failure = Failure::new(Kind::NoAnswer, "a\r\nforged: line");
        assert_eq!(failure.to_string(), "no-answer: a  forged: line");
    }

    #[test]
    fn a_backtrace_is_indented_below_its_line() {
        let mut failure = Failure::new(Kind::Trap, "unreachable");
        failure.backtrace = Some("0: a\n1: b".into());
        assert_eq!(failure.to_string(), "trap: unreachable\n    0: a\n    1: b");
    }
}
