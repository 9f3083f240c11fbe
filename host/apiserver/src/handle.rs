//! Turns a request into its response: routing, negotiation, bodies, warnings and counters.

use std::{convert::Infallible, sync::Arc};

use bytes::Bytes;
use http::{
    HeaderMap, Method, Request, Response, StatusCode,
    header::{self, HeaderValue},
    request,
};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    VERSION,
    admission::REQUEST_TIME,
    body, browser,
    convert::{all_to_requested, to_requested},
    discovery,
    faults::{
        Plan, Refusal, Verb, admin,
        answer::{spoil, through},
        connection::Line,
        stream::WatchFaults,
        subject::Subject,
    },
    metrics::{Labels, OnEnd},
    object::{Key, Object, to_json},
    openapi,
    present::{Form, ListMeta},
    request::{Params, Route, Target, fault_verb, text_header, verb},
    requester,
    resources::{Purpose, Resource},
    rest::{Answer, Call, Part, create, delete, delete::Options, eviction, get, list, patch, update},
    server::Server,
    status::{Result, Status},
    tokens,
    watch::{Watch, no_streaming_lists},
};

pub(crate) type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Answers one request.
pub(crate) async fn handle<B>(server: &Arc<Server>, line: &Arc<Line>, request: Request<B>) -> Response<Body>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let (head, incoming) = request.into_parts();
    let route = Route::of(head.uri.path());
    let is_debug = matches!(route, Route::Debug(_));
    if let Some(why) = browser::refusal(&head).or_else(|| browser::host_refusal(&head).filter(|_| is_debug)) {
        return refused(&Status::cross_site(why));
    }
    match route {
        Route::Resource(target) => resource(server, line, &head, incoming, &target).await,
        Route::Debug(path) => admin::answer(server, &head, incoming, &path).await,
        route @ (Route::Health | Route::Metrics | Route::Index | Route::Unknown) => other(server, &head, &route),
        route => {
            let agent = text_header(&head.headers, header::USER_AGENT);
            let plan = server.faults.plan(&Subject::bare(Verb::Discovery, agent));
            let answer = async { spoil(&plan, line, other(server, &head, &route)).await };
            through(&plan, line, answer).await
        }
    }
}

/// Answers requests for anything but a resource: discovery, OpenAPI, health, version and metrics.
fn other(server: &Server, head: &request::Parts, route: &Route) -> Response<Body> {
    if ![Method::GET, Method::HEAD].contains(&head.method) {
        let status = if *route == Route::Unknown { Status::unknown_path() } else { Status::method_not_allowed() };
        return refused(&status);
    }
    let registry = server.registry();
    let found = match route {
        Route::CoreVersions | Route::Groups => {
            let core = *route == Route::CoreVersions;
            let form = discovery::Form::of(&head.headers);
            let document = match form {
                discovery::Form::Aggregated(version) => discovery::aggregated(&registry, core, version),
                discovery::Form::Plain if core => discovery::core_versions(text_header(&head.headers, header::HOST)),
                discovery::Form::Plain => discovery::groups(&registry),
            };
            return tagged(&head.headers, &form.content_type(), to_json(&document));
        }
        Route::Group(group) => discovery::group(&registry, group),
        Route::Resources { group, version } => match discovery::resources(&registry, group, version) {
            None if registry.is_builtin(group) => return refused(&Status::unknown_resource()),
            found => found,
        },
        Route::OpenApi => Some(openapi::index(&registry)),
        Route::OpenApiGroup(path) => {
            return match openapi::document(&registry, path) {
                Some(document) => tagged(&head.headers, "application/json", document),
                None => refused(&Status::unknown_path()),
            };
        }
        Route::Version => Some(version()),
        Route::Health => return text("ok"),
        Route::Metrics => return text(&server.metrics.text()),
        Route::Index => Some(json!({"paths": [
            "/api", "/api/v1", "/apis", "/healthz", "/livez", "/metrics", "/openapi/v3", "/readyz", "/version",
        ]})),
        Route::Unknown | Route::Resource(_) | Route::Debug(_) => None,
    };
    match found {
        Some(value) => respond(StatusCode::OK, "application/json", to_json(&value)),
        None => refused(&Status::unknown_path()),
    }
}

/// Returns the body of `/version`.
fn version() -> Value {
    let mut numbers = VERSION.trim_start_matches('v').split('.');
    json!({
        "major": numbers.next(), "minor": numbers.next(), "gitVersion": VERSION, "gitCommit": "", "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z", "goVersion": "none", "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    })
}

async fn resource<B>(
    server: &Arc<Server>,
    line: &Arc<Line>,
    head: &request::Parts,
    incoming: B,
    target: &Target,
) -> Response<Body>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let params = Params::of(&head.uri);
    let watch = params.flag("watch");
    let apply = patch::Kind::of(&head.headers) == Some(patch::Kind::Apply);
    let verb = verb(&head.method, target, watch, apply);
    let labels = |code: StatusCode| Labels {
        code: code.as_u16(),
        dry_run: params.has("dryRun"),
        group: target.group.clone(),
        version: target.version.clone(),
        resource: target.plural.clone(),
        subresource: target.subresource.clone(),
        scope: match () {
            () if !target.name.is_empty() || verb == "POST" => "resource",
            () if !target.namespace.is_empty() => "namespace",
            () => "cluster",
        },
        verb,
    };
    let found = match find(server, target) {
        Ok(found) => found,
        // Not counted, because the client could make up any label.
        Err(status) => return refused(&status),
    };
    if let Err(status) = requester::authorize(server, &head.headers, (target, &found.0), &params, verb) {
        server.metrics.count(labels(status.code));
        return refused(&status);
    }
    let watches = verb == "WATCH" && found.1 == Part::Object;
    let subject = subject(head, target, &params, if watches || verb != "WATCH" { verb } else { "GET" });
    let plan = subject.as_ref().map(|subject| server.faults.plan(subject)).unwrap_or_default();
    let request =
        ResourceRequest { server, head, target, params: &params, resource: &found.0, part: found.1, plan: &plan };
    let answer = async {
        if let Some(subject) = subject.filter(|_| watches) {
            let faults = WatchFaults::open(server, line, subject, &plan);
            let count = || OnEnd { server: Arc::clone(server), labels: labels(StatusCode::OK) };
            return request.watch(faults, count).unwrap_or_else(|status| refused(&status));
        }
        let body = match body::read(incoming).await {
            Ok(body) => request.perform(&body).await,
            Err(status) => Err(status),
        };
        spoil(&plan, line, body.unwrap_or_else(|status| refused(&status))).await
    };
    let response = through(&plan, line, answer).await;
    // An open watch counts itself when it ends.
    if !watches || response.status() != StatusCode::OK {
        server.metrics.count(labels(response.status()));
    }
    response
}

/// Returns the request as fault rules see it.
fn subject(head: &request::Parts, target: &Target, params: &Params, verb: &str) -> Option<Subject> {
    Some(Subject {
        verb: fault_verb(verb)?,
        group: target.group.clone(),
        plural: target.plural.clone(),
        subresource: target.subresource.clone(),
        namespace: target.namespace.clone(),
        user_agent: text_header(&head.headers, header::USER_AGENT).to_owned(),
        continues: !params.get("continue").is_empty(),
        streams: params.flag("sendInitialEvents"),
    })
}

fn find(server: &Server, target: &Target) -> Result<(Arc<Resource>, Part)> {
    let registry = server.registry();
    let missing = || {
        if registry.is_builtin(&target.group) { Status::unknown_resource() } else { Status::unknown_path() }
    };
    let resource = registry.find(&target.group, &target.version, &target.plural).ok_or_else(missing)?;
    let part = Part::of(&target.subresource, resource).ok_or_else(|| match resource.custom {
        true => Status::not_found(&resource.group_resource(), &target.name),
        false => Status::unknown_resource(),
    })?;
    let misplaced = if resource.namespaced {
        target.namespace.is_empty() && !target.name.is_empty()
    } else {
        !target.namespace.is_empty()
    };
    if misplaced { Err(missing()) } else { Ok((Arc::clone(resource), part)) }
}

/// A request for an existing resource.
struct ResourceRequest<'a> {
    server: &'a Arc<Server>,
    head: &'a request::Parts,
    target: &'a Target,
    params: &'a Params,
    resource: &'a Arc<Resource>,
    part: Part,
    plan: &'a Plan,
}

impl ResourceRequest<'_> {
    fn key(&self) -> Key {
        Key::new(&self.target.namespace, &self.target.name)
    }

    fn watch(&self, faults: WatchFaults, count: impl FnOnce() -> OnEnd) -> Result<Response<Body>> {
        if self.resource.purpose == Purpose::Review {
            return Err(Status::method_not_allowed());
        }
        let form = Form::negotiate(&self.head.headers, self.params)?;
        self.check_refusal()?;
        let watch = Watch::open(self.server, self.resource, &self.key(), self.params, form, self.plan, faults)?;
        let body = StreamBody::new(watch.counted(count()).frames()).boxed_unsync();
        let mut response = Response::new(body);
        let content_type = HeaderValue::from_static("application/json");
        response.headers_mut().insert(header::CONTENT_TYPE, content_type);
        self.warn(&mut response, &[]);
        Ok(response)
    }

    async fn perform(&self, body: &[u8]) -> Result<Response<Body>> {
        let form = Form::negotiate(&self.head.headers, self.params)?;
        let method = self.head.method.as_str();
        let collection = self.target.name.is_empty();
        if self.resource.purpose == Purpose::Review && (method, collection) != ("POST", true) {
            return Err(Status::method_not_allowed());
        }
        self.check_refusal()?;
        match self.part {
            Part::Eviction => return self.evict(body, form).await,
            Part::Log => return self.log(),
            Part::Token => return self.token(body, form).await,
            Part::Object | Part::Status | Part::Scale | Part::Finalize => {}
        }
        match (method, collection) {
            ("GET" | "HEAD", true) => {
                let (objects, meta) =
                    list::list(self.server, self.resource, &self.key(), self.params, self.plan.stale).await?;
                let json = self.listed(&objects, &meta, form).await?;
                let mut response = respond(StatusCode::OK, "application/json", json);
                self.warn(&mut response, &[]);
                Ok(response)
            }
            ("GET" | "HEAD", false) if self.part != Part::Finalize => {
                self.check_version()?;
                let answer = get(self.server, self.resource, &self.key(), self.part, self.plan.stale).await?;
                self.answer(answer, form, &[]).await
            }
            ("DELETE", true) if !self.resource.verbs().contains(&"deletecollection") => {
                Err(Status::method_not_allowed())
            }
            ("DELETE", _) if self.part == Part::Object => self.delete(collection, body, form).await,
            ("POST", _) if self.part == Part::Object && (collection || self.resource.custom) => {
                if self.resource.namespaced && self.target.namespace.is_empty() {
                    return Err(Status::method_not_allowed());
                }
                let mut call = self.call("CreateOptions")?;
                let decoded = body::decode(&self.head.headers, body, &self.resource.kind)?;
                let answer = create::create(&mut call, decoded).await;
                Ok(self.written(answer, form, &call.warnings).await)
            }
            ("PUT" | "PATCH", true) if self.resource.custom => Err(Status::bad_request("name must be provided")),
            ("PUT", false) => {
                let mut call = self.call("UpdateOptions")?;
                let decoded = body::decode(&self.head.headers, body, &self.resource.kind)?;
                let answer = update::update(&mut call, decoded).await;
                Ok(self.written(answer, form, &call.warnings).await)
            }
            ("PATCH", false) if self.part != Part::Finalize => {
                let mut call = self.call("PatchOptions")?;
                let kind = patch::Kind::of(&self.head.headers);
                let answer = patch::patch(&mut call, kind, self.params, body).await;
                Ok(self.written(answer, form, &call.warnings).await)
            }
            _ => Err(Status::method_not_allowed()),
        }
    }

    async fn evict(&self, body: &[u8], form: Form) -> Result<Response<Body>> {
        if self.head.method != Method::POST {
            return Err(Status::method_not_allowed());
        }
        let eviction = body::decode(&self.head.headers, body, "Eviction")?.value;
        let mut call = self.call("CreateOptions")?;
        let answer = eviction::evict(&mut call, &eviction, self.params).await;
        Ok(self.written(answer, form, &call.warnings).await)
    }

    async fn token(&self, body: &[u8], form: Form) -> Result<Response<Body>> {
        if self.head.method != Method::POST {
            return Err(Status::method_not_allowed());
        }
        let request = body::decode(&self.head.headers, body, "TokenRequest")?.value;
        let call = self.call("CreateOptions")?;
        self.answer(tokens::request(&call, &request)?, form, &[]).await
    }

    fn log(&self) -> Result<Response<Body>> {
        if self.head.method != Method::GET {
            return Err(Status::method_not_allowed());
        }
        eviction::log(&self.call("GetOptions")?, self.params.get("container"))?;
        Ok(respond(StatusCode::NO_CONTENT, "text/plain", Bytes::new()))
    }

    /// Returns the error of a fault rule, if one applies.
    fn check_refusal(&self) -> Result<()> {
        Err(match self.plan.refusal {
            None => return Ok(()),
            Some(Refusal::ExpiredContinue) => list::expired_page(self.params)?,
            Some(Refusal::TooLargeVersion) => {
                let current = self.server.revision();
                let asked =
                    self.params.get("resourceVersion").parse().ok().filter(|asked| *asked > 0).unwrap_or(current);
                Status::version_too_large(asked, asked.saturating_sub(1))
            }
            Some(Refusal::StreamingLists) => no_streaming_lists(),
        })
    }

    /// Checks the revision that a GET may request. The current state answers for every revision that is not newer.
    fn check_version(&self) -> Result<()> {
        let text = self.params.get("resourceVersion");
        if text.is_empty() {
            return Ok(());
        }
        let invalid = || {
            Status::unknown(format!(
                "resourceVersion: Invalid value: \"{text}\": strconv.ParseUint: parsing \"{text}\": invalid syntax"
            ))
        };
        let version: u64 = text.parse().map_err(|_| invalid())?;
        let current = self.server.revision();
        if version > current { Err(Status::version_too_large(version, current)) } else { Ok(()) }
    }

    async fn delete(&self, collection: bool, body: &[u8], form: Form) -> Result<Response<Body>> {
        let options = if body.trim_ascii().is_empty() {
            Value::Null
        } else {
            body::decode(&self.head.headers, body, "DeleteOptions")?.value
        };
        let mut call = self.call("DeleteOptions")?;
        call.options = self.delete_options(&options);
        let options = Options::parse(&options, self.params)?;
        call.dry_run = options.dry_run;
        if collection {
            if self.resource.namespaced && self.target.namespace.is_empty() {
                return Err(Status::method_not_allowed());
            }
            let (objects, meta) = list::list(self.server, self.resource, &self.key(), self.params, None).await?;
            let mut response = match delete::delete_all(&mut call, &objects, &options).await {
                Ok(()) => {
                    let json = self.listed(&objects, &meta, form).await?;
                    respond(StatusCode::OK, "application/json", json)
                }
                Err(status) => refused(&status),
            };
            self.warn(&mut response, &call.warnings);
            return Ok(response);
        }
        let answer = delete::delete(&mut call, &options).await;
        Ok(self.written(answer, form, &call.warnings).await)
    }

    /// Returns the options of a write as webhooks get them.
    fn options(&self, kind: &str) -> Value {
        let mut options = json!({"kind": kind, "apiVersion": "meta.k8s.io/v1"});
        for field in ["fieldManager", "fieldValidation"] {
            if self.params.has(field) {
                options[field] = self.params.get(field).into();
            }
        }
        if self.params.has("dryRun") {
            options["dryRun"] = json!([self.params.get("dryRun")]);
        }
        if self.params.has("force") && kind == "PatchOptions" {
            options["force"] = self.params.flag("force").into();
        }
        options
    }

    /// Returns the options of a delete as webhooks get them: those in the body, and else in the query.
    fn delete_options(&self, body: &Value) -> Value {
        let mut options = self.options("DeleteOptions");
        if self.params.has("propagationPolicy") {
            options["propagationPolicy"] = self.params.get("propagationPolicy").into();
        }
        if let Ok(Some(seconds)) = self.params.number::<i64>("gracePeriodSeconds") {
            options["gracePeriodSeconds"] = seconds.into();
        }
        for (field, value) in body.as_object().into_iter().flatten() {
            if !["apiVersion", "kind"].contains(&field.as_str()) {
                options[field] = value.clone();
            }
        }
        options
    }

    fn call(&self, options: &str) -> Result<Call<'_>> {
        Ok(Call {
            server: self.server,
            resource: self.resource,
            key: self.key(),
            part: self.part,
            manager: self.params.manager(&self.head.headers, options)?,
            dry_run: self.params.dry_run(options)?,
            validation: self.params.field_validation(options)?,
            patched: false,
            options: self.options(options),
            deadline: Instant::now() + REQUEST_TIME,
            warnings: Vec::new(),
        })
    }

    /// Returns the response to a write. A rejected write may have warnings too.
    async fn written(&self, answer: Result<Answer>, form: Form, warnings: &[String]) -> Response<Body> {
        let answer = match answer {
            Ok(answer) => self.answer(answer, form, warnings).await,
            Err(status) => Err(status),
        };
        match answer {
            Ok(response) => response,
            Err(status) => {
                let mut response = refused(&status);
                self.warn(&mut response, warnings);
                response
            }
        }
    }

    async fn answer(&self, answer: Answer, form: Form, warnings: &[String]) -> Result<Response<Body>> {
        let resource = self.resource;
        let (code, json) = match answer {
            Answer::Kept(code, object) => match form.as_stored(resource, &object) {
                Some(json) => (code, json),
                None => {
                    let view = to_requested(self.server, resource, &object.value).await?;
                    (code, form.object(resource, &view))
                }
            },
            Answer::Made(code, value) if value["kind"] == resource.kind => {
                let view = to_requested(self.server, resource, &value).await?;
                (code, form.object(resource, &view))
            }
            Answer::Made(code, value) => (code, to_json(&value)),
        };
        let mut response = respond(code, "application/json", json);
        self.warn(&mut response, warnings);
        Ok(response)
    }

    async fn listed(&self, objects: &[Arc<Object>], meta: &ListMeta, form: Form) -> Result<Bytes> {
        let objects = all_to_requested(self.server, self.resource, objects).await?;
        Ok(form.list(self.resource, &objects, meta))
    }

    fn warn(&self, response: &mut Response<Body>, warnings: &[String]) {
        for warning in self.resource.deprecated.iter().chain(warnings) {
            let escaped = warning.replace('\\', "\\\\").replace('"', "\\\"");
            // A warning that does not fit into a header is dropped, rather than failing the request.
            if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{escaped}\"")) {
                response.headers_mut().append(header::WARNING, value);
            }
        }
    }
}

pub(crate) fn respond(code: StatusCode, content_type: &str, content: Bytes) -> Response<Body> {
    let mut response = Response::new(Full::new(content).boxed_unsync());
    *response.status_mut() = code;
    let headers = response.headers_mut();
    if let Ok(value) = HeaderValue::from_str(content_type) {
        headers.insert(header::CONTENT_TYPE, value);
    }
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    response
}

fn text(content: &str) -> Response<Body> {
    respond(StatusCode::OK, "text/plain; charset=utf-8", Bytes::copy_from_slice(content.as_bytes()))
}

/// Returns a document with an ETag, or 304 if the client has it already.
fn tagged(headers: &HeaderMap, content_type: &str, content: Bytes) -> Response<Body> {
    let tag = format!("\"{}\"", openapi::hash(&content));
    let known = text_header(headers, header::IF_NONE_MATCH).split(',').any(|known| known.trim() == tag);
    let mut response = if known {
        respond(StatusCode::NOT_MODIFIED, content_type, Bytes::new())
    } else {
        respond(StatusCode::OK, content_type, content)
    };
    if let Ok(value) = HeaderValue::from_str(&tag) {
        response.headers_mut().insert(header::ETAG, value);
    }
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("Accept"));
    response
}

fn refused(status: &Status) -> Response<Body> {
    if status.is_plain() {
        let message = Bytes::from(format!("{}\n", status.message));
        return respond(status.code, "text/plain; charset=utf-8", message);
    }
    let mut response = respond(status.code, "application/json", to_json(&status.to_value()));
    if status.code == StatusCode::GATEWAY_TIMEOUT {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}
