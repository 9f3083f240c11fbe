//! What the API server is asked, and what is decided without it.

#![allow(clippy::unwrap_used, reason = "a failed test should panic")]

use std::{collections::BTreeSet, future::pending};

use http::HeaderName;

use super::*;
use crate::cluster::Status;

/// How the API server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::admin) enum Mode {
    Answers,
    Fails,
    Hangs,
}

/// An API server with tokens that are named as their users, with `-token` behind.
pub(in crate::admin) struct Api {
    pub(in crate::admin) mode: Mutex<Mode>,
    pub(in crate::admin) users: Mutex<BTreeSet<String>>,
    /// `USER VERB PATH`.
    pub(in crate::admin) rights: Mutex<BTreeSet<String>>,
    /// What it was asked, in order.
    pub(in crate::admin) asked: Mutex<Vec<String>>,
}

impl Api {
    pub(in crate::admin) fn new(users: &[&str], rights: &[&str]) -> Arc<Self> {
        let all = |texts: &[&str]| Mutex::new(texts.iter().map(|text| (*text).to_owned()).collect());
        Arc::new(Self {
            mode: Mutex::new(Mode::Answers),
            users: all(users),
            rights: all(rights),
            asked: Mutex::default(),
        })
    }

    fn answer<T: Send + 'static>(&self, asked: String, answer: T) -> BoxFuture<'static, Result<T, Error>> {
        self.asked.lock().push(asked);
        match *self.mode.lock() {
            Mode::Answers => Box::pin(async { Ok(answer) }),
            Mode::Fails => Box::pin(async {
                let message = "tokenreviews.authentication.k8s.io is forbidden".to_owned();
                Err(Error::Status(Box::new(Status { code: 403, message, ..Status::default() })))
            }),
            Mode::Hangs => Box::pin(pending()),
        }
    }

    fn taken(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock())
    }
}

impl Reviews for Api {
    fn whose(&self, token: &str) -> BoxFuture<'static, Result<Option<UserInfo>, Error>> {
        let user = token.strip_suffix("-token").filter(|user| self.users.lock().contains(*user));
        let info = user.map(|user| UserInfo { username: Some(user.to_owned()), ..UserInfo::default() });
        self.answer(token.to_owned(), info)
    }

    fn may(&self, user: &UserInfo, verb: &str, path: &str) -> BoxFuture<'static, Result<bool, Error>> {
        let right = format!("{} {verb} {path}", user.username.as_deref().unwrap_or_default());
        let allowed = self.rights.lock().contains(&right);
        self.answer(right, allowed)
    }
}

fn headers(authorization: &[&str]) -> HeaderMap {
    let name = HeaderName::from_static("authorization");
    authorization.iter().map(|value| (name.clone(), HeaderValue::from_str(value).unwrap())).collect()
}

fn guard(api: &Arc<Api>) -> Guard {
    Guard::new(api.clone()).unwrap()
}

async fn ask(guard: &Guard, token: &str, verb: &str, path: &str) -> Result<(), Refusal> {
    let identity = guard.authenticate(&headers(&[&format!("Bearer {token}")])).await?;
    guard.authorize(&identity, verb, path).await
}

async fn scrape(guard: &Guard, token: &str) -> Result<(), Refusal> {
    ask(guard, token, "get", "/metrics").await
}

fn denied(user: &str, verb: &str, path: &str) -> Result<(), Refusal> {
    Err(Refusal::Denied { user: user.to_owned(), verb: verb.to_owned(), path: path.to_owned() })
}

async fn seconds(seconds: u64) {
    tokio::time::advance(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_counts_for_a_minute_and_is_asked_for_again_then() {
    let api = Api::new(&["prometheus"], &["prometheus get /metrics"]);
    let guard = guard(&api);
    for _ in 0..3 {
        assert_eq!(scrape(&guard, "prometheus-token").await, Ok(()));
        seconds(15).await;
    }
    assert_eq!(api.taken(), ["prometheus-token", "prometheus get /metrics"]);
    seconds(15).await;
    assert_eq!(scrape(&guard, "prometheus-token").await, Ok(()));
    assert_eq!(api.taken(), ["prometheus-token", "prometheus get /metrics"]);
}

#[tokio::test(start_paused = true)]
async fn invariant_7_what_is_withdrawn_ends_within_a_minute_and_what_is_granted_begins_within_ten_seconds() {
    let api = Api::new(&["prometheus", "ana"], &["prometheus get /metrics"]);
    let guard = guard(&api);
    assert_eq!(scrape(&guard, "prometheus-token").await, Ok(()));
    assert_eq!(ask(&guard, "ana-token", "get", "/metrics").await, denied("ana", "get", "/metrics"));
    assert_eq!(scrape(&guard, "eve-token").await, Err(Refusal::BadToken));
    *api.rights.lock() = BTreeSet::from(["ana get /metrics".to_owned()]);
    api.users.lock().insert("eve".to_owned());
    seconds(10).await;
    assert_eq!(scrape(&guard, "ana-token").await, Ok(()));
    assert_eq!(scrape(&guard, "eve-token").await, denied("eve", "get", "/metrics"));
    seconds(50).await;
    assert_eq!(scrape(&guard, "prometheus-token").await, denied("prometheus", "get", "/metrics"));
    // A token that is revoked.
    api.users.lock().clear();
    seconds(60).await;
    assert_eq!(scrape(&guard, "prometheus-token").await, Err(Refusal::BadToken));
}

#[tokio::test(start_paused = true)]
async fn each_verb_and_path_is_judged_by_itself() {
    let api = Api::new(&["ana"], &["ana get /debug/plugins", "ana release /debug/plugins/a/release"]);
    let guard = guard(&api);
    for (verb, path, allowed) in [
        ("get", "/debug/plugins", true),
        ("release", "/debug/plugins/a/release", true),
        ("get", "/debug/plugins/a/release", false),
        ("release", "/debug/plugins/b/release", false),
        ("get", "/metrics", false),
    ] {
        let expected = if allowed { Ok(()) } else { denied("ana", verb, path) };
        assert_eq!(ask(&guard, "ana-token", verb, path).await, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn invariant_12_a_flood_of_made_up_tokens_asks_little_and_keeps_nobody_out() {
    let api = Api::new(&["prometheus"], &["prometheus get /metrics"]);
    let guard = guard(&api);
    assert_eq!(scrape(&guard, "prometheus-token").await, Ok(()));
    api.taken();
    let mut busy = 0;
    for number in 0..1_000 {
        match scrape(&guard, &format!("{number}-token")).await {
            Err(Refusal::Busy(wait)) => {
                assert!(wait <= STRANGERS.every, "{wait:?}");
                busy += 1;
            }
            answer => assert_eq!(answer, Err(Refusal::BadToken)),
        }
        // The same token again is no question.
        if number == 0 {
            assert_eq!(scrape(&guard, "0-token").await, Err(Refusal::BadToken));
        }
    }
    let asked = api.taken().len();
    // One of the burst was Prometheus' own.
    assert_eq!((asked, busy), (19, 981));
    // Its time is over, so it has to be asked about again, and is.
    for number in 1_000..1_070 {
        seconds(1).await;
        assert_eq!(scrape(&guard, &format!("{number}-token")).await, Err(Refusal::BadToken));
    }
    assert_eq!(scrape(&guard, "prometheus-token").await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn invariant_12_one_user_cannot_have_everything_asked_either() {
    let api = Api::new(&["eve", "prometheus"], &["prometheus get /metrics"]);
    let guard = guard(&api);
    for number in 0..200 {
        let path = format!("/debug/plugins/{number}/release");
        let expected = if number < 50 { denied("eve", "release", &path) } else { Err(Refusal::Busy(PER_USER.every)) };
        assert_eq!(ask(&guard, "eve-token", "release", &path).await, expected);
    }
    assert_eq!(scrape(&guard, "prometheus-token").await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn nobody_is_let_in_while_the_api_server_cannot_be_asked() {
    let api = Api::new(&["prometheus"], &["prometheus get /metrics"]);
    let guard = Arc::new(guard(&api));
    *api.mode.lock() = Mode::Fails;
    assert_eq!(scrape(&guard, "prometheus-token").await, Err(Refusal::Unavailable));
    *api.mode.lock() = Mode::Hangs;
    let began = Instant::now();
    let asking: Vec<_> = (0..10)
        .map(|number| {
            let guard = guard.clone();
            tokio::spawn(async move { scrape(&guard, &format!("{number}-token")).await })
        })
        .collect();
    api.taken();
    tokio::task::yield_now().await;
    assert_eq!(api.taken().len(), AT_ONCE);
    for asked in asking {
        assert_eq!(asked.await.unwrap(), Err(Refusal::Unavailable));
    }
    assert_eq!(began.elapsed().as_secs(), WITHIN.as_secs());
    // Nothing of it is remembered.
    *api.mode.lock() = Mode::Answers;
    assert_eq!(scrape(&guard, "prometheus-token").await, Ok(()));
    // What is known goes on while the API server is away.
    *api.mode.lock() = Mode::Fails;
    assert_eq!(scrape(&guard, "prometheus-token").await, Ok(()));
    assert_eq!(ask(&guard, "prometheus-token", "get", "/debug/plugins").await, Err(Refusal::Unavailable));
}

#[tokio::test(start_paused = true)]
async fn requests_without_exactly_one_bearer_token_are_refused_and_the_api_server_is_not_asked() {
    let api = Api::new(&["ana"], &[]);
    let guard = guard(&api);
    let long = format!("Bearer {}", "x".repeat(TOKEN + 1));
    for authorization in
        [&[][..], &["Basic YTpi"], &["Bearer"], &["Bearer  "], &["ana-token"], &["Bearer a", "Bearer b"], &[&*long]]
    {
        let refused = guard.authenticate(&headers(authorization)).await.map(|_| ());
        assert_eq!(refused, Err(Refusal::NoToken), "{authorization:?}");
    }
    assert_eq!(api.taken(), [""; 0]);
    assert!(guard.authenticate(&headers(&["bearer ana-token"])).await.is_ok());
}

#[tokio::test]
async fn a_refusal_says_what_is_wrong_and_what_to_do() {
    let mut shown = String::new();
    for refusal in [
        Refusal::NoToken,
        Refusal::BadToken,
        denied("system:serviceaccount:a:b", "release", "/debug/plugins/c/release").unwrap_err(),
        Refusal::Busy(Duration::from_millis(200)),
        Refusal::Unavailable,
    ] {
        let response = refusal.into_response();
        let header = |name: &HeaderName| response.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
        let headers = [&header::WWW_AUTHENTICATE, &header::RETRY_AFTER].map(header).into_iter().flatten();
        let first: Vec<_> = [response.status().to_string()].into_iter().chain(headers).collect();
        let body = axum::body::to_bytes(response.into_body(), 10_000).await.unwrap();
        shown.push_str(&format!("{}\n    {}", first.join("; "), String::from_utf8_lossy(&body)));
    }
    insta::assert_snapshot!(shown, @r#"
    401 Unauthorized; Bearer realm="pilothouse"
        this address needs a bearer token, such as one of `kubectl create token`
    401 Unauthorized; Bearer realm="pilothouse", error="invalid_token"
        the API server does not know this token, or its time is over
    403 Forbidden
        system:serviceaccount:a:b may not release /debug/plugins/c/release: grant it the verb release of the nonResourceURL /debug/plugins/c/release by a ClusterRole
    429 Too Many Requests; 1
        too many requests that the API server would have to be asked about; try again later
    503 Service Unavailable
        the API server could not be asked who may do this; the host's log says why
    "#);
}
