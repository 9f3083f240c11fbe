//! The client for requests that change something. It asks whether this process may act when a request is written to its
//! connection.
//!
//! [`Cluster`](super::Cluster) has asked before. Then the request waits for a connection, and for the task that writes
//! to it. If the process is stopped in between, that task may be the first to go on, long after another host has taken
//! over. So the last question stands right before the bytes leave: where hyper takes the body, into the same buffer as
//! the head.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper_rustls::HttpsConnector;
use hyper_util::{
    client::legacy::{
        Client,
        connect::{Connect, HttpConnector},
    },
    rt::TokioExecutor,
};
use kube::client::{Body, ConfigExt};
use tower::Service;

use super::http2;
use crate::{acting::Acting, proxy::Proxied};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// This process may not act any more.
#[derive(Debug, thiserror::Error)]
#[error("this process may not act any more")]
struct Over;

/// Creates the client.
///
/// # Errors
/// The certificates or credentials of the configuration cannot be used, or its proxy is of an unknown kind.
pub(super) fn client(config: &kube::Config) -> Result<kube::Client, kube::Error> {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_connect_timeout(config.connect_timeout);
    let Some(proxy) = &config.proxy_url else { return connected(config, http) };
    if !matches!(proxy.scheme_str(), Some("http" | "https" | "socks5")) {
        return Err(kube::Error::ProxyProtocolUnsupported { proxy_url: Box::new(proxy.clone()) });
    }
    match Proxied::new(proxy, http, &config.rustls_client_config()?) {
        Proxied::Socks(socks) => connected(config, socks),
        Proxied::Https(tunnel) => connected(config, tunnel),
        Proxied::Http(tunnel) => connected(config, tunnel),
    }
}

/// Creates a client whose connections `connector` opens.
fn connected<C>(config: &kube::Config, connector: C) -> Result<kube::Client, kube::Error>
where
    HttpsConnector<C>: Connect + Clone + Send + Sync + 'static,
{
    let https = config.rustls_https_connector_with_connector(connector)?;
    http2::layered(ChangeClient(Client::builder(TokioExecutor::new()).build(https)), config)
}

/// Sends requests whose extensions have the [`Acting`] to ask.
#[derive(Clone)]
struct ChangeClient<C>(Client<C, Fenced>);

impl<C> Service<Request<Body>> for ChangeClient<C>
where
    C: Connect + Clone + Send + Sync + 'static,
{
    type Response = Response<Incoming>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let acting = request.extensions_mut().remove::<Acting>();
        let answer = self.0.request(request.map(|body| Fenced { body, acting }));
        Box::pin(async move { Ok(answer.await?) })
    }
}

/// A body that fails when the process may not act.
struct Fenced {
    body: Body,
    /// `None` if the request is always allowed.
    acting: Option<Acting>,
}

impl http_body::Body for Fenced {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.acting.as_ref().is_some_and(|acting| !acting.is_allowed()) {
            return Poll::Ready(Some(Err(Over.into())));
        }
        Pin::new(&mut self.body).poll_frame(context).map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::{TcpListener, TcpStream},
    };

    use super::*;
    use crate::causes::with_causes;

    /// Takes the next connection. If it is one to a proxy, the server is behind it.
    async fn accepted(listener: &TcpListener, proxy: Option<&str>) -> TcpStream {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let answers: &[&[u8]] = match proxy {
            None => &[],
            Some("socks5") => &[&[5, 0], &[5, 0, 0, 1, 127, 0, 0, 1, 0, 80]],
            Some(_) => &[b"HTTP/1.1 200 OK\r\n\r\n"],
        };
        for answer in answers {
            let read = stream.read(&mut [0; 1024]).await.expect("a question");
            assert!(read > 0, "the connection ended");
            stream.write_all(answer).await.expect("it is read");
        }
        stream
    }

    #[tokio::test]
    async fn a_request_that_waited_for_its_connection_is_not_written_once_the_process_may_not_act() {
        for proxy in [None, Some("http"), Some("socks5")] {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
            let address = listener.local_addr().expect("a listener has an address");
            let mut config = kube::Config::new(format!("http://{address}").parse().expect("an address"));
            config.proxy_url = proxy.map(|scheme| format!("{scheme}://{address}").parse().expect("an address"));
            let client = client(&config).expect("a client");
            let acting = Acting::new(true);
            let mut request = Request::patch("/x").body(Body::from(b"{}".to_vec())).expect("a request");
            request.extensions_mut().insert(acting.clone());
            let server = async {
                let mut stream = accepted(&listener, proxy).await;
                let mut bytes = vec![0; 1024];
                let read = stream.read(&mut bytes).await.expect("bytes or an end");
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await.map(|()| read)
            };
            let (answer, read) = tokio::join!(client.send(request), server);
            assert!(answer.is_ok(), "{proxy:?}: {answer:?}");
            assert!(read.is_ok_and(|read| read > 0));

            acting.set(false);
            let mut request = Request::patch("/x").body(Body::from(b"{}".to_vec())).expect("a request");
            request.extensions_mut().insert(acting);
            let server = async {
                let mut stream = accepted(&listener, proxy).await;
                let mut bytes = Vec::new();
                stream.read_to_end(&mut bytes).await.map(|_| bytes)
            };
            let (answer, read) = tokio::join!(client.send(request), server);
            let error = answer.map(drop).expect_err("it is not sent");
            assert!(with_causes(&error).contains("may not act any more"), "{}", with_causes(&error));
            assert_eq!(read.expect("an end"), b"", "nothing was written");
        }
    }

    #[tokio::test]
    async fn a_proxy_of_an_unknown_kind_is_refused() {
        let mut config = kube::Config::new(http::Uri::from_static("http://127.0.0.1"));
        config.proxy_url = Some(http::Uri::from_static("ftp://127.0.0.1"));
        let error = client(&config).map(drop).expect_err("it cannot be used");
        assert!(error.to_string().contains("ftp"), "{error}");
    }
}
