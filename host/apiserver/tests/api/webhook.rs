//! An HTTPS server that answers as a webhook, with a certificate of its own CA.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use http_body_util::{BodyExt, Full};
use hyper::{Request, Response, StatusCode, body::Bytes, body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::{ServerConfig, crypto::ring, pki_types::PrivateKeyDer};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// What a webhook says.
pub(crate) enum Said {
    /// The `response` of a review, which gets the request's uid.
    Response(Value),
    /// A whole body with its code.
    Body(u16, String),
    /// Nothing, ever.
    Nothing,
}

type Answer = dyn Fn(&Value) -> Said + Send + Sync;

/// A running webhook.
pub(crate) struct Hook {
    pub(crate) addr: SocketAddr,
    /// The CA bundle, as in a `clientConfig`.
    pub(crate) ca: String,
    seen: Arc<Mutex<Vec<Value>>>,
    connections: Arc<AtomicUsize>,
}

impl Hook {
    /// Serves on the loopback address.
    pub(crate) async fn serve(answer: impl Fn(&Value) -> Said + Send + Sync + 'static) -> Self {
        Self::serve_as("127.0.0.1", answer).await
    }

    /// Serves with a certificate for one name.
    pub(crate) async fn serve_as(name: &str, answer: impl Fn(&Value) -> Said + Send + Sync + 'static) -> Self {
        let (tls, ca) = certificate(name);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let (seen, connections) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
        let answer: Arc<Answer> = Arc::new(answer);
        tokio::spawn(accept(listener, tls, answer, Arc::clone(&seen), Arc::clone(&connections)));
        Hook { addr, ca: BASE64.encode(ca), seen, connections }
    }

    /// A webhook that allows everything.
    pub(crate) async fn allowing() -> Self {
        Self::serve(|_| Said::Response(json!({"allowed": true}))).await
    }

    /// The `clientConfig` of this webhook.
    pub(crate) fn client_config(&self) -> Value {
        json!({"url": format!("https://{}/review", self.addr), "caBundle": self.ca})
    }

    /// The `request` of every review so far.
    pub(crate) fn seen(&self) -> Vec<Value> {
        self.seen.lock().iter().map(|review| review["request"].clone()).collect()
    }

    /// The number of connections so far.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

fn certificate(name: &str) -> (TlsAcceptor, String) {
    let ca_key = KeyPair::generate().unwrap();
    let mut ca = CertificateParams::new(Vec::new()).unwrap();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let pem = ca.self_signed(&ca_key).unwrap().pem();
    let issuer = Issuer::new(ca, ca_key);
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec![name.to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    (TlsAcceptor::from(Arc::new(config)), pem)
}

async fn accept(
    listener: TcpListener,
    tls: TlsAcceptor,
    answer: Arc<Answer>,
    seen: Arc<Mutex<Vec<Value>>>,
    connections: Arc<AtomicUsize>,
) {
    while let Ok((stream, _)) = listener.accept().await {
        connections.fetch_add(1, Ordering::Relaxed);
        let (tls, answer, seen) = (tls.clone(), Arc::clone(&answer), Arc::clone(&seen));
        tokio::spawn(async move {
            // A client that does not trust the certificate ends the connection.
            let Ok(stream) = tls.accept(stream).await else { return };
            let service = service_fn(|request| respond(request, &*answer, &seen));
            let _ended =
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn respond(
    request: Request<Incoming>,
    answer: &Answer,
    seen: &Mutex<Vec<Value>>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let review: Value = serde_json::from_slice(&body).unwrap();
    let said = answer(&review["request"]);
    seen.lock().push(review.clone());
    let (code, text) = match said {
        Said::Response(mut response) => {
            response["uid"] = review["request"]["uid"].clone();
            let answer = json!({"kind": review["kind"], "apiVersion": review["apiVersion"], "response": response});
            (200, answer.to_string())
        }
        Said::Body(code, text) => (code, text),
        Said::Nothing => std::future::pending().await,
    };
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = StatusCode::from_u16(code).unwrap();
    Ok(response)
}

/// A webhook of a configuration, for all writes of ConfigMaps. `more` has further fields, or others.
pub(crate) fn entry(name: &str, hook: &Hook, more: &Value) -> Value {
    let mut entry = json!({
        "name": name, "clientConfig": hook.client_config(), "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "rules": [rule("", "v1", "configmaps")],
    });
    for (field, value) in more.as_object().unwrap() {
        entry[field] = value.clone();
    }
    entry
}

/// A rule for all operations.
pub(crate) fn rule(group: &str, version: &str, resource: &str) -> Value {
    json!({"apiGroups": [group], "apiVersions": [version], "resources": [resource], "operations": ["*"]})
}

/// A `MutatingWebhookConfiguration` or `ValidatingWebhookConfiguration`.
pub(crate) fn configuration(kind: &str, name: &str, webhooks: &[Value]) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": format!("{kind}WebhookConfiguration"),
        "metadata": {"name": name}, "webhooks": webhooks,
    })
}

/// The base64 text of a JSON patch, with its type.
pub(crate) fn patched(patch: &Value) -> Said {
    Said::Response(json!({"allowed": true, "patchType": "JSONPatch", "patch": BASE64.encode(patch.to_string())}))
}
