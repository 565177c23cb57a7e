//! Names for wasi:http's error codes, as the standard spells them, in lower
//! case. Both versions have the same codes.

use crate::ErrorCode;

/// The code's name, as in `connection-refused`.
pub fn name(code: &ErrorCode) -> &'static str {
    match code {
        ErrorCode::DnsTimeout => "dns-timeout",
        ErrorCode::DnsError(_) => "dns-error",
        ErrorCode::DestinationNotFound => "destination-not-found",
        ErrorCode::DestinationUnavailable => "destination-unavailable",
        ErrorCode::DestinationIpProhibited => "destination-ip-prohibited",
        ErrorCode::DestinationIpUnroutable => "destination-ip-unroutable",
        ErrorCode::ConnectionRefused => "connection-refused",
        ErrorCode::ConnectionTerminated => "connection-terminated",
        ErrorCode::ConnectionTimeout => "connection-timeout",
        ErrorCode::ConnectionReadTimeout => "connection-read-timeout",
        ErrorCode::ConnectionWriteTimeout => "connection-write-timeout",
        ErrorCode::ConnectionLimitReached => "connection-limit-reached",
        ErrorCode::TlsProtocolError => "tls-protocol-error",
        ErrorCode::TlsCertificateError => "tls-certificate-error",
        ErrorCode::TlsAlertReceived(_) => "tls-alert-received",
        ErrorCode::HttpRequestDenied => "http-request-denied",
        ErrorCode::HttpRequestLengthRequired => "http-request-length-required",
        ErrorCode::HttpRequestBodySize(_) => "http-request-body-size",
        ErrorCode::HttpRequestMethodInvalid => "http-request-method-invalid",
        ErrorCode::HttpRequestUriInvalid => "http-request-uri-invalid",
        ErrorCode::HttpRequestUriTooLong => "http-request-uri-too-long",
        ErrorCode::HttpRequestHeaderSectionSize(_) => "http-request-header-section-size",
        ErrorCode::HttpRequestHeaderSize(_) => "http-request-header-size",
        ErrorCode::HttpRequestTrailerSectionSize(_) => "http-request-trailer-section-size",
        ErrorCode::HttpRequestTrailerSize(_) => "http-request-trailer-size",
        ErrorCode::HttpResponseIncomplete => "http-response-incomplete",
        ErrorCode::HttpResponseHeaderSectionSize(_) => "http-response-header-section-size",
        ErrorCode::HttpResponseHeaderSize(_) => "http-response-header-size",
        ErrorCode::HttpResponseBodySize(_) => "http-response-body-size",
        ErrorCode::HttpResponseTrailerSectionSize(_) => "http-response-trailer-section-size",
        ErrorCode::HttpResponseTrailerSize(_) => "http-response-trailer-size",
        ErrorCode::HttpResponseTransferCoding(_) => "http-response-transfer-coding",
        ErrorCode::HttpResponseContentCoding(_) => "http-response-content-coding",
        ErrorCode::HttpResponseTimeout => "http-response-timeout",
        ErrorCode::HttpUpgradeFailed => "http-upgrade-failed",
        ErrorCode::HttpProtocolError => "http-protocol-error",
        ErrorCode::LoopDetected => "loop-detected",
        ErrorCode::ConfigurationError => "configuration-error",
        ErrorCode::InternalError(_) => "internal-error",
    }
}

/// The code's name, followed by what it carries that helps a reader.
pub fn describe(code: &ErrorCode) -> String {
    let detail = match code {
        ErrorCode::DnsError(payload) => payload.rcode.clone(),
        ErrorCode::TlsAlertReceived(payload) => payload.alert_message.clone(),
        ErrorCode::InternalError(detail)
        | ErrorCode::HttpResponseTransferCoding(detail)
        | ErrorCode::HttpResponseContentCoding(detail) => detail.clone(),
        ErrorCode::HttpRequestBodySize(size) | ErrorCode::HttpResponseBodySize(size) => {
            size.map(|bytes| format!("{bytes} bytes"))
        }
        _ => None,
    };
    match detail {
        Some(detail) => format!("{} {detail}", name(code)),
        None => name(code).into(),
    }
}
