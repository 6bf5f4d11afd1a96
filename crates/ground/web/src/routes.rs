//! HTTP: the assets for everybody, figures for who may look, acts for who may act.
//!
//! Every answer carries the headers that keep other origins out. A request's body is at most [`BODY_MOST`]. Tokens are
//! in no log: requests are not logged, acts are, with the address that they came from.

use crate::answer::{Fault, Shared, json};
use crate::assets::{ASSETS, Asset, version};
use crate::bounded::{self, Bounds};
use crate::frames::{Facts, Frame};
use crate::guard::{Hosts, Right, Tokens};
use crate::hub::{Hub, Opened, Order};
use crate::objects;
use crate::s3::S3;
use crate::source::{Act, Refusal, Source, WhatIf};
use axum::Router;
use axum::body::Bytes;
use axum::extract::{ConnectInfo, DefaultBodyLimit, Path, Query, Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, MethodRouter, get, on, post};
use ebb_types::ServerId;
use futures_util::stream::{Stream, unfold};
use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, oneshot};

/// Bytes of a request's body: an act is far shorter.
const BODY_MOST: usize = 4096;
/// A stream says at least so often that it is there.
const ALIVE: Duration = Duration::from_secs(10);
/// Moments that a stream sends until it sends everything again, in which a page's charts have the same points as the
/// program's.
const MOMENTS_MOST: u32 = 1800;
/// No script, style, image or connection but the page's own.
const CONTENT_POLICY: &str =
    "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Who may use the page, and what it says of the cluster that the cluster does not.
pub struct Page {
    pub tokens: Tokens,
    pub hosts: Hosts,
    pub facts: Facts,
    /// `None`: buckets and objects are not shown.
    pub s3: Option<S3>,
}

/// Serves the page until `stop` ends. Open streams end with it.
pub async fn serve(listener: TcpListener, page: Page, source: impl Source, stop: impl Future<Output = ()>) {
    let shared = Shared {
        hub: Hub::start(source, page.facts),
        tokens: Arc::new(page.tokens),
        hosts: Arc::new(page.hosts),
        s3: page.s3,
    };
    let app = router(shared);
    tokio::select! {
        () = bounded::serve(listener, app, Bounds::default()) => {}
        () = stop => {}
    }
}

fn router(shared: Shared) -> Router {
    let mut router = Router::new();
    for asset in ASSETS {
        router = router.route(asset.path, get(move || async move { file(asset) }));
    }
    router
        .route("/api/stream", get(stream))
        .route("/api/status", told(MethodFilter::GET, Right::Look, Order::Status))
        .route("/api/notices", told(MethodFilter::GET, Right::Look, Order::Notices))
        .route("/api/servers/{id}", get(server))
        .route("/api/what-if", get(what_if))
        .route("/api/act", post(act))
        // An act, because management controllers are asked: some are slow, and lose answers when asked often.
        .route("/api/measure", told(MethodFilter::POST, Right::Act, Order::Measure))
        .route("/api/volumes", told(MethodFilter::GET, Right::Look, Order::Volumes))
        .merge(objects::routes())
        .fallback(|| async { Fault::Nothing })
        .layer(DefaultBodyLimit::max(BODY_MOST))
        .layer(from_fn_with_state(shared.hosts.clone(), own))
        .with_state(shared)
}

/// Turns strangers away, and adds to every answer what keeps them out.
pub(crate) async fn own(State(hosts): State<Arc<Hosts>>, request: Request, next: Next) -> Response {
    let mut answer = match hosts.fault(request.headers()) {
        Some(why) => (StatusCode::FORBIDDEN, why.to_string()).into_response(),
        None => next.run(request).await,
    };
    for (name, value) in [
        (CONTENT_SECURITY_POLICY, CONTENT_POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (REFERRER_POLICY, "no-referrer"),
        (CACHE_CONTROL, "no-store"),
        // A proxy that collects a stream shows nothing of it.
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ] {
        // An object's answer has a stricter policy of its own.
        answer.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
    }
    answer
}

pub(crate) fn file(asset: &'static Asset) -> Response {
    ([(CONTENT_TYPE, asset.kind)], asset.bytes).into_response()
}

/// What the hub tells in JSON, to those with this right.
fn told(
    method: MethodFilter,
    least: Right,
    order: fn(oneshot::Sender<Result<String, Refusal>>) -> Order,
) -> MethodRouter<Shared> {
    on(method, move |State(shared): State<Shared>, headers: HeaderMap| async move {
        shared.tokens.need(&headers, least)?;
        Ok::<_, Fault>(json(shared.hub.ask(order).await??))
    })
}

async fn server(
    State(shared): State<Shared>,
    headers: HeaderMap,
    Path(id): Path<u16>,
) -> Result<Response, Fault> {
    shared.tokens.need(&headers, Right::Look)?;
    let found = shared.hub.ask(|answer| Order::Server(ServerId(id), answer)).await??;
    Ok(axum::Json(found.ok_or(Fault::NoServer(id))?).into_response())
}

async fn what_if(
    State(shared): State<Shared>,
    headers: HeaderMap,
    Query(wish): Query<WhatIf>,
) -> Result<Response, Fault> {
    shared.tokens.need(&headers, Right::Look)?;
    let replayed = shared.hub.ask(|answer| Order::WhatIf(wish, answer)).await??;
    Ok(axum::Json(replayed).into_response())
}

async fn act(
    State(shared): State<Shared>,
    ConnectInfo(from): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Fault> {
    shared.tokens.may_act(&headers, from, "an act")?;
    let act: Act = serde_json::from_slice(&body).map_err(Fault::NoAct)?;
    let done = shared.hub.ask(|answer| Order::Act(act, answer)).await?;
    match &done {
        Ok(()) => tracing::info!("the administrator at {from}: {act}"),
        Err(why) => tracing::warn!("the administrator at {from}: {act}: {why}"),
    }
    done?;
    Ok(json("{\"done\":true}".to_owned()))
}

async fn stream(
    State(shared): State<Shared>,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Fault> {
    let right = shared.tokens.need(&headers, Right::Look)?;
    let opened = shared.hub.ask(Order::Open).await?;
    let frames = unfold(Stage::Rights(rights(right), opened, shared.hub), next_event);
    Ok(Sse::new(frames).keep_alive(KeepAlive::new().interval(ALIVE)))
}

/// The first event of a stream. `assets`: a page whose modules are others loads itself again.
pub(crate) fn rights(right: Right) -> Event {
    let act = right == Right::Act;
    Event::default().event("rights").data(format!("{{\"act\":{act},\"assets\":\"{}\"}}", version()))
}

/// What a stream sends next.
enum Stage {
    Rights(Event, Opened, Hub),
    Hello(Arc<Frame>, broadcast::Receiver<Arc<Frame>>, Hub),
    /// With the number of frames since everything was sent.
    Frames(broadcast::Receiver<Arc<Frame>>, Hub, u32),
}

fn event(frame: &Frame) -> Result<Event, Infallible> {
    Ok(Event::default().event(frame.name).data(&frame.json))
}

async fn next_event(stage: Stage) -> Option<(Result<Event, Infallible>, Stage)> {
    match stage {
        Stage::Rights(rights, Opened { hello, frames }, hub) => {
            Some((Ok(rights), Stage::Hello(hello, frames, hub)))
        }
        Stage::Hello(hello, frames, hub) => Some((event(&hello), Stage::Frames(frames, hub, 0))),
        Stage::Frames(mut frames, hub, told) => match frames.recv().await {
            Ok(frame) if told < MOMENTS_MOST => Some((event(&frame), Stage::Frames(frames, hub, told + 1))),
            Ok(_) | Err(RecvError::Lagged(_)) => {
                // What it has missed is in the next hello; what is still queued would be older than that.
                let frames = frames.resubscribe();
                let hello = hub.ask(Order::Hello).await.ok()?;
                Some((event(&hello), Stage::Frames(frames, hub, 0)))
            }
            Err(RecvError::Closed) => None,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::made_up::{Leader, status};

    #[tokio::test(start_paused = true)]
    async fn now_and_then_a_stream_sends_everything_anew() {
        let hub = Hub::start(Leader::new(status(3)), Facts::default());
        let Opened { frames, .. } = hub.ask(Order::Open).await.unwrap();
        let mut stage = Stage::Frames(frames, hub, MOMENTS_MOST - 1);
        let mut counts = Vec::new();
        for _ in 0..3 {
            stage = next_event(stage).await.unwrap().1;
            let Stage::Frames(_, _, told) = &stage else { panic!("the stream ended") };
            counts.push(*told);
        }
        assert_eq!(counts, [MOMENTS_MOST, 0, 1]);
    }
}
