//! The way out of an app: to another app of this host, or to the outgoing
//! client, and back with an error that `wasi:http` has a word for.

use crate::exchange::Exchange;
use crate::outgoing::destination::{Destination, Host, Scheme};
use crate::outgoing::policy::Policy;
use crate::outgoing::{self, Client, Deadlines, Interrupted, Watched};
use crate::suspension::Written;
use futures::future::BoxFuture;
use http::header::HOST;
use http_body_util::BodyExt as _;
use std::sync::Arc;
use wasmtime_wasi_http::{Error, RequestOptions, WasiBody};

/// Where the outgoing requests of one app go.
pub struct Egress {
    pub policy: Arc<Policy>,
    pub client: Client<WasiBody>,
    pub deadlines: Deadlines,
    /// Whether guests may set `Host` to something else than the authority.
    pub may_set_host: bool,
    pub door: Door,
}

/// From the name of an app of this host to a call of it; `None` for other
/// names. The way back up the layers, which `host` sets.
pub type Door = Arc<dyn Fn(&str) -> Option<InProcess> + Send + Sync>;

/// Hands one request to an app of this host.
pub type InProcess =
    Box<dyn FnOnce(Arc<Exchange>, http::Request<WasiBody>) -> InProcessAnswer + Send>;

pub type InProcessAnswer = BoxFuture<'static, Result<http::Response<WasiBody>, Error>>;

impl Egress {
    pub async fn send(
        &self,
        exchange: Arc<Exchange>,
        mut request: http::Request<WasiBody>,
        written: Written,
        abandoned: impl Future<Output = ()>,
        options: Option<RequestOptions>,
    ) -> Result<http::Response<WasiBody>, Error> {
        let options = options.unwrap_or_default();
        let deadlines = self.deadlines.shortened(
            options.connect_timeout,
            options.first_byte_timeout,
            options.between_bytes_timeout,
        );
        if let Some(app) = internal_app(request.uri()) {
            self.policy.check_internal(&app).map_err(|denied| {
                tracing::info!("request {} app {}: {denied}", exchange.id, exchange.app);
                Error::HttpRequestDenied
            })?;
            let call = (self.door)(&app).ok_or_else(|| {
                let Exchange {
                    id, app: caller, ..
                } = &*exchange;
                tracing::info!("request {id} app {caller}: this host has no app {app}");
                Error::DestinationNotFound
            })?;
            request.headers_mut().remove(HOST);
            let call = call(Arc::clone(&exchange), request);
            let response = tokio::time::timeout(deadlines.first_byte, call)
                .await
                .map_err(|_| Error::HttpResponseTimeout)??;
            return Ok(response
                .map(|body| Watched::new(body, exchange, deadlines.between_bytes).boxed_unsync()));
        }
        let caller = Arc::clone(&exchange);
        let sent = self
            .client
            .send(caller, request, written, abandoned, deadlines);
        match sent.await {
            Ok(response) => {
                Ok(response.map(|body| body.map_err(error_from_outgoing).boxed_unsync()))
            }
            Err(error) => {
                tracing::info!("request {} app {}: {error}", exchange.id, exchange.app);
                Err(error_from_outgoing(error))
            }
        }
    }
}

/// The APP in `http://APP.internal/`. A name with more labels is one of DNS,
/// like those of a cloud's metadata.
fn internal_app(uri: &http::Uri) -> Option<String> {
    let destination = Destination::parse(uri.scheme_str()?, uri.authority()?.as_str()).ok()?;
    let Host::Name(name) = &destination.host else {
        return None;
    };
    let app = name.strip_suffix(".internal")?;
    let is_app = destination.scheme == Scheme::Http
        && destination.port == Scheme::Http.default_port()
        && !app.contains('.');
    is_app.then(|| app.to_owned())
}

/// The one table from a failed outgoing request to the guest's `error-code`.
fn error_from_outgoing(error: outgoing::Error) -> Error {
    use outgoing::Error as Outgoing;
    match error {
        Outgoing::Invalid(_) => Error::HttpRequestUriInvalid,
        Outgoing::Denied(_) => Error::HttpRequestDenied,
        Outgoing::DeniedAddress(_) => Error::DestinationIpProhibited,
        Outgoing::Loop => Error::LoopDetected,
        Outgoing::DnsTimeout(_) => Error::DnsTimeout,
        Outgoing::Dns { rcode, .. } => Error::DnsError {
            rcode: Some(rcode),
            info_code: None,
        },
        Outgoing::NoAddress(_) => Error::DestinationNotFound,
        Outgoing::Refused(_) => Error::ConnectionRefused,
        Outgoing::NoLocalPort(_) => Error::InternalError(Some(error.to_string())),
        Outgoing::Connect(_) => Error::DestinationUnavailable,
        Outgoing::ConnectTimeout => Error::ConnectionTimeout,
        Outgoing::ConnectionLimit(_) => Error::ConnectionLimitReached,
        Outgoing::TlsCertificate(_) => Error::TlsCertificateError,
        Outgoing::TlsAlert { id, name } => Error::TlsAlertReceived {
            alert_id: Some(id),
            alert_message: Some(name),
        },
        Outgoing::TlsProtocol(_) => Error::TlsProtocolError,
        Outgoing::FirstByteTimeout => Error::HttpResponseTimeout,
        Outgoing::BetweenBytesTimeout => Error::ConnectionReadTimeout,
        Outgoing::Terminated(_) | Outgoing::Cancelled => Error::ConnectionTerminated,
        Outgoing::Protocol(_) => Error::HttpProtocolError,
        Outgoing::RequestBody(reason) => Error::InternalError(Some(reason)),
    }
}

impl From<Interrupted> for Error {
    fn from(interrupted: Interrupted) -> Self {
        error_from_outgoing(interrupted.into())
    }
}

#[cfg(test)]
mod tests {
    use super::internal_app;

    #[test]
    fn only_one_label_below_internal_names_an_app() {
        for (uri, app) in [
            ("http://remote.internal/", Some("remote")),
            ("http://Remote.INTERNAL.:80/x", Some("remote")),
            ("http://remote.internal:8080/", None),
            ("https://remote.internal/", None),
            ("http://metadata.google.internal/", None),
            ("http://internal/", None),
            ("http://xinternal/", None),
            ("http://remote.internal.org/", None),
            ("/remote.internal", None),
        ] {
            let uri: http::Uri = uri.parse().unwrap();
            assert_eq!(internal_app(&uri).as_deref(), app, "{uri}");
        }
    }
}
