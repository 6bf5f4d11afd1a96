//! The lab over HTTP: the same assets, names and tokens as the cluster's page ([`crate::guard`]), with the lab's own
//! questions and acts.

use crate::answer::json;
use crate::assets::{ASSETS, LAB};
use crate::bounded::{self, Bounds};
use crate::guard::{Denied, Hosts, Right, Tokens};
use crate::lab::{Answer, FieldFault, Lab, LabAct, LabRefusal, Question, Wish};
use crate::routes::{file, own, rights};
use axum::Router;
use axum::body::Bytes;
use axum::extract::{ConnectInfo, DefaultBodyLimit, Path, Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::from_fn_with_state;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use futures_util::stream::{Stream, unfold};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;

/// Bytes of a request's body: a matrix with hundreds of values fits.
const BODY_MOST: usize = 65_536;
const ALIVE: Duration = Duration::from_secs(10);
/// Between two looks at what is so, while a page is open.
const LOOK: Duration = Duration::from_millis(500);

struct Shared<L> {
    lab: L,
    tokens: Tokens,
}

/// Serves the lab alone until `stop` ends. Open streams end with it.
pub async fn serve_lab(
    listener: TcpListener,
    tokens: Tokens,
    hosts: Hosts,
    lab: impl Lab,
    stop: impl Future<Output = ()>,
) {
    let app = router(Shared { lab, tokens }, Arc::new(hosts));
    tokio::select! {
        () = bounded::serve(listener, app, Bounds::default()) => {}
        () = stop => {}
    }
}

fn router<L: Lab>(shared: Shared<L>, hosts: Arc<Hosts>) -> Router {
    let mut router: Router<Arc<Shared<L>>> = Router::new();
    for asset in ASSETS.iter().filter(|asset| asset.path != "/") {
        let path = if asset.path == LAB { "/" } else { asset.path };
        router = router.route(path, get(move || async move { file(asset) }));
    }
    router
        .route("/api/stream", get(stream::<L>))
        .route("/api/runs", question(Question::Runs))
        .route("/api/runs.csv", question(Question::Csv))
        .route("/api/figures", question(Question::Figures))
        .route("/api/figures/{n}", chart(Question::Svg))
        .route("/api/compare", question(Question::Compare))
        .route("/api/compare/{n}", chart(Question::CompareSvg))
        .route("/api/repeat", question(Question::Repeat))
        .route("/api/offers", get(offers::<L>))
        .route("/api/plan", get(plan::<L>))
        .route("/api/act", post(act::<L>))
        .fallback(|| async { Fault::Nothing })
        .layer(DefaultBodyLimit::max(BODY_MOST))
        .layer(from_fn_with_state(hosts, own))
        .with_state(Arc::new(shared))
}

/// Why a request is not answered. Its text is shown on the page.
#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error(transparent)]
    Denied(#[from] Denied),
    #[error("this is neither a matrix nor an act: {0}")]
    Strange(serde_json::Error),
    #[error("there is nothing here")]
    Nothing,
    #[error(transparent)]
    Lab(#[from] LabRefusal),
}

impl IntoResponse for Fault {
    fn into_response(self) -> Response {
        let code = match &self {
            Fault::Denied(denied) => denied.code(),
            Fault::Strange(_) => StatusCode::BAD_REQUEST,
            Fault::Nothing => StatusCode::NOT_FOUND,
            Fault::Lab(LabRefusal::Field(fault)) => return field(fault),
            Fault::Lab(LabRefusal::Refused(_)) => StatusCode::CONFLICT,
        };
        (code, self.to_string()).into_response()
    }
}

fn field(fault: &FieldFault) -> Response {
    (StatusCode::UNPROCESSABLE_ENTITY, axum::Json(fault)).into_response()
}

type Of<L> = State<Arc<Shared<L>>>;
type Answered = Result<Response, Fault>;

impl<L: Lab> Shared<L> {
    async fn ask(&self, headers: &HeaderMap, question: Question) -> Answered {
        self.tokens.need(headers, Right::Look)?;
        let Answer { kind, text } = self.lab.answer(question).await?;
        Ok(([(CONTENT_TYPE, kind)], text).into_response())
    }
}

/// What the query asks.
fn question<L: Lab, Q: DeserializeOwned + Send + 'static>(
    of: fn(Q) -> Question,
) -> MethodRouter<Arc<Shared<L>>> {
    get(move |State(lab): Of<L>, headers: HeaderMap, Query(asked): Query<Q>| async move {
        lab.ask(&headers, of(asked)).await
    })
}

/// The nth chart of what the query asks.
fn chart<L: Lab, Q: DeserializeOwned + Send + 'static>(
    of: fn(Q, usize) -> Question,
) -> MethodRouter<Arc<Shared<L>>> {
    get(
        move |State(lab): Of<L>, headers: HeaderMap, Path(n): Path<usize>, Query(asked): Query<Q>| async move {
            lab.ask(&headers, of(asked, n)).await
        },
    )
}

async fn offers<L: Lab>(State(lab): Of<L>, headers: HeaderMap) -> Answered {
    lab.ask(&headers, Question::Offers).await
}

/// A matrix, as JSON in the address: planning changes nothing.
#[derive(Deserialize)]
struct Asked {
    matrix: String,
}

async fn plan<L: Lab>(State(lab): Of<L>, headers: HeaderMap, Query(asked): Query<Asked>) -> Answered {
    lab.tokens.need(&headers, Right::Look)?;
    let wish: Wish = serde_json::from_str(&asked.matrix).map_err(Fault::Strange)?;
    lab.ask(&headers, Question::Plan(Box::new(wish))).await
}

async fn act<L: Lab>(
    State(lab): Of<L>,
    ConnectInfo(from): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
    body: Bytes,
) -> Answered {
    lab.tokens.may_act(&headers, from, "an act")?;
    let act: LabAct = serde_json::from_slice(&body).map_err(Fault::Strange)?;
    let name = act.to_string();
    let done = lab.lab.act(act).await;
    match &done {
        Ok(()) => tracing::info!("the administrator at {from}: {name}"),
        Err(why) => tracing::warn!("the administrator at {from}: {name}: {why}"),
    }
    done?;
    Ok(json("{\"done\":true}".to_owned()))
}

async fn stream<L: Lab>(
    State(lab): Of<L>,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Fault> {
    let right = lab.tokens.need(&headers, Right::Look)?;
    let watch = Watch { lab, rights: Some(rights(right)), after: 0, told: String::new() };
    Ok(Sse::new(unfold(watch, next_event)).keep_alive(KeepAlive::new().interval(ALIVE)))
}

/// What one page has been sent.
struct Watch<L> {
    lab: Arc<Shared<L>>,
    rights: Option<Event>,
    /// The number of the next point.
    after: u64,
    told: String,
}

async fn next_event<L: Lab>(mut watch: Watch<L>) -> Option<(Result<Event, Infallible>, Watch<L>)> {
    if let Some(rights) = watch.rights.take() {
        return Some((Ok(rights), watch));
    }
    loop {
        let view = watch.lab.lab.look(watch.after).await;
        let state = text(&(&view.results, &view.campaigns));
        if state != watch.told || !view.points.is_empty() {
            watch.told = state;
            watch.after = view.first + view.points.len() as u64;
            return Some((Ok(Event::default().event("lab").data(text(&view))), watch));
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn text(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("plain data can be written as JSON")
}
