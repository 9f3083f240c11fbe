//! The table of routes. The servers answer what stands here, and nothing else.

use std::sync::Arc;

use axum::{
    Router,
    extract::{self, Request},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{MethodRouter, get, post},
};
use http::StatusCode;
use http_body::Body as _;
use pilothouse_apiserver::browser;

use super::{
    guard::{Guard, Identity, Refusal},
    pages::{self, State},
};

/// One route.
pub(super) struct Route {
    /// The path, with `{plugin}` for a plugin's name.
    pub(super) path: &'static str,
    /// The verb that RBAC must grant, in the server with authorization. Every POST has one of its own.
    pub(super) verb: &'static str,
    /// What stands before the path that RBAC must grant.
    ///
    /// Kubernetes lets every account get `/readyz`. Here it shows details, so it counts as `/debug/readyz`.
    pub(super) below: &'static str,
    handler: fn() -> MethodRouter<State>,
    /// The answer without details, if the server of probes has the path.
    probe: Option<fn() -> MethodRouter<State>>,
}

impl Route {
    /// A GET that needs the verb `get` on its path.
    const fn get(path: &'static str, handler: fn() -> MethodRouter<State>) -> Self {
        Self { path, verb: "get", below: "", handler, probe: None }
    }

    /// A POST that needs a verb of its own on its path.
    const fn post(path: &'static str, verb: &'static str, handler: fn() -> MethodRouter<State>) -> Self {
        Self { path, verb, below: "", handler, probe: None }
    }
}

/// All routes.
pub(super) static ROUTES: [Route; 10] = [
    Route::get("/", || get(pages::index)),
    Route { probe: Some(|| get(pages::alive)), ..Route::get("/healthz", || get(pages::alive)) },
    Route { probe: Some(|| get(pages::alive)), ..Route::get("/livez", || get(pages::alive)) },
    Route { below: "/debug", probe: Some(|| get(pages::probe_readyz)), ..Route::get("/readyz", || get(pages::readyz)) },
    Route { below: "/debug", ..Route::get("/readyz/plugins/{plugin}", || get(pages::plugin_readyz)) },
    Route::get("/metrics", || get(pages::metrics)),
    Route::get("/debug/informers", || get(pages::informers)),
    Route::get("/debug/plugins", || get(pages::plugins)),
    Route::post("/debug/plugins/{plugin}/release", "release", || post(pages::release)),
    Route::get("/debug/webhooks", || get(pages::webhooks)),
];

/// The routes of the server of metrics. With a guard, it asks about every request.
pub(super) fn router(state: State, guard: Option<&Arc<Guard>>) -> Router {
    let mut router = Router::new();
    for route in &ROUTES {
        let handler = (route.handler)();
        let handler = match guard {
            Some(guard) => handler.layer(middleware::from_fn_with_state((guard.clone(), route), authorize)),
            None => handler,
        };
        router = router.route(route.path, handler);
    }
    let router = match guard {
        Some(guard) => router.fallback(unknown_path).layer(middleware::from_fn_with_state(guard.clone(), authenticate)),
        None => router,
    };
    router.layer(middleware::from_fn(refuse_web_pages)).layer(middleware::from_fn(refuse_bodies)).with_state(state)
}

/// The routes of the server of probes.
pub(super) fn probe_router(state: State) -> Router {
    let mut router = Router::new();
    for (route, probe) in ROUTES.iter().filter_map(|route| Some((route, route.probe?))) {
        router = router.route(route.path, probe());
    }
    router.layer(middleware::from_fn(refuse_bodies)).with_state(state)
}

async fn unknown_path() -> (StatusCode, &'static str) {
    (StatusCode::NOT_FOUND, "there is nothing at this path; / lists what there is\n")
}

/// Rejects requests without a valid token, also those to paths that do not exist.
async fn authenticate(
    extract::State(guard): extract::State<Arc<Guard>>,
    mut request: Request,
    next: Next,
) -> Result<Response, Refusal> {
    let identity = guard.authenticate(request.headers()).await?;
    request.extensions_mut().insert(identity);
    Ok(next.run(request).await)
}

/// Rejects requests of accounts that may not use the route.
///
/// The path is neither decoded nor cleaned up: a request is routed by the same text that RBAC judges.
async fn authorize(
    extract::State((guard, route)): extract::State<(Arc<Guard>, &'static Route)>,
    request: Request,
    next: Next,
) -> Result<Response, Refusal> {
    let identity = request.extensions().get::<Identity>().ok_or(Refusal::NoToken)?;
    guard.authorize(identity, route.verb, &format!("{}{}", route.below, request.uri().path())).await?;
    Ok(next.run(request).await)
}

/// Rejects requests that a page of another site made a browser send. A plain port asks for no credentials.
async fn refuse_web_pages(request: Request, next: Next) -> Response {
    let (head, body) = request.into_parts();
    match browser::refusal(&head) {
        Some(why) => (StatusCode::FORBIDDEN, format!("{why}\n")).into_response(),
        None => next.run(Request::from_parts(head, body)).await,
    }
}

/// Rejects requests with a body. No route needs one, so none is ever read.
async fn refuse_bodies(request: Request, next: Next) -> Response {
    if request.body().size_hint().exact() == Some(0) {
        return next.run(request).await;
    }
    (StatusCode::PAYLOAD_TOO_LARGE, "requests to this address have no body\n").into_response()
}
