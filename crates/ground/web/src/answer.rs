//! What all handlers of the cluster's page share, and how a refusal is answered.

use crate::guard::{Denied, Hosts, Tokens};
use crate::hub::{Ended, Hub};
use crate::s3::{S3, S3Fault};
use crate::source::Refusal;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use std::sync::Arc;

#[derive(Clone)]
pub(crate) struct Shared {
    pub hub: Hub,
    pub tokens: Arc<Tokens>,
    pub hosts: Arc<Hosts>,
    pub s3: Option<S3>,
}

/// Why a request is not answered. Its text is shown on the page.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error(transparent)]
    Denied(#[from] Denied),
    #[error("this is not an act: {0}")]
    NoAct(serde_json::Error),
    #[error("there is no server {0}")]
    NoServer(u16),
    #[error("there is nothing here")]
    Nothing,
    #[error("the page is about to end: start `ebb page` again")]
    Ending,
    #[error(transparent)]
    Cluster(#[from] Refusal),
    #[error(transparent)]
    S3(#[from] S3Fault),
}

impl From<Ended> for Fault {
    fn from(Ended: Ended) -> Fault {
        Fault::Ending
    }
}

impl IntoResponse for Fault {
    fn into_response(self) -> Response {
        let code = match &self {
            Fault::S3(fault) => fault.code(),
            Fault::Denied(denied) => denied.code(),
            Fault::NoAct(_) => StatusCode::BAD_REQUEST,
            Fault::NoServer(_) | Fault::Nothing => StatusCode::NOT_FOUND,
            Fault::Ending | Fault::Cluster(Refusal::Unreachable(_)) => StatusCode::SERVICE_UNAVAILABLE,
            Fault::Cluster(Refusal::Refused(_)) => StatusCode::CONFLICT,
        };
        (code, self.to_string()).into_response()
    }
}

pub(crate) fn json(text: String) -> Response {
    ([(CONTENT_TYPE, "application/json")], text).into_response()
}
