//! Where metrics come from: a server's URL, a file, or the socket of `adit kv serve`.

use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use adit_kvshare::{Client, ClientOptions};
use ureq::Agent;

use crate::any_store::connect;
use crate::failure::{Failure, Result};
use crate::metrics::{METRICS_BYTES_MAX, Metrics};

/// Time limit for a server's answer.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Url(String),
    File(PathBuf),
    Served(PathBuf),
}

/// Reads a source again and again.
pub(super) struct Sampler<'a> {
    source: &'a Source,
    /// The connection to a server that has a socket; none before the first reading, and once it is lost.
    client: Option<Client>,
}

impl Sampler<'_> {
    pub(super) fn new(source: &Source) -> Sampler<'_> {
        Sampler { source, client: None }
    }

    /// Reads the metrics.
    ///
    /// # Errors
    /// When nothing answers, the file cannot be read, or it holds no metrics of a store.
    pub(super) fn read(&mut self) -> Result<Metrics> {
        let text = match self.source {
            Source::Url(url) => self.source.fetched(url)?,
            Source::File(path) => {
                let fix = "give a file of metrics, or a URL such as http://localhost:8080/metrics";
                fs::read_to_string(path).map_err(|why| self.source.failed(&why, fix))?
            }
            Source::Served(socket) => {
                let client = self
                    .client
                    .take()
                    .map_or_else(|| connect(socket, &ClientOptions::default()), Ok)?;
                let metrics = Metrics::of_server(&client)?;
                self.client = Some(client);
                return Ok(metrics);
            }
        };
        Metrics::parse(&text, &self.source.to_string())
    }
}

impl FromStr for Source {
    type Err = String;

    /// Takes anything without `://` as a file, unless it begins with `serve:`. A URL without a path gets `/metrics`.
    fn from_str(text: &str) -> std::result::Result<Source, String> {
        if let Some(socket) = text.strip_prefix("serve:").filter(|socket| !socket.is_empty()) {
            return Ok(Source::Served(socket.into()));
        }
        let Some((scheme, rest)) = text.split_once("://") else {
            return match text {
                "-" => {
                    Err("metrics have to be read again and again: give a URL or a file".to_owned())
                }
                _ => Ok(Source::File(text.into())),
            };
        };
        if scheme != "http" {
            return Err(format!(
                "'{scheme}' is not spoken here: use http://, or a file that curl writes"
            ));
        }
        let has_path = rest.trim_end_matches('/').contains('/');
        let url = text.trim_end_matches('/');
        Ok(Source::Url(if has_path { text.to_owned() } else { format!("{url}/metrics") }))
    }
}

impl Source {
    fn fetched(&self, url: &str) -> Result<String> {
        let fix = "give the address of the server's metrics, such as http://localhost:8080/metrics";
        let agent: Agent = Agent::config_builder().timeout_global(Some(PATIENCE)).build().into();
        let mut answer = agent.get(url).call().map_err(|why| self.failed(&why, fix))?;
        let body = answer.body_mut().with_config().limit(METRICS_BYTES_MAX);
        body.read_to_string().map_err(|why| self.failed(&why, fix))
    }

    fn failed(&self, why: &dyn fmt::Display, fix: &str) -> Failure {
        Failure::failed(format!("{self}: {why}; {fix}"))
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Url(url) => f.write_str(url),
            Source::File(path) => path.display().fmt(f),
            Source::Served(socket) => write!(f, "serve:{}", socket.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_without_a_path_means_the_metrics() {
        let of = |text: &str| text.parse::<Source>().map(|source| source.to_string());
        assert_eq!(of("http://host:80").as_deref(), Ok("http://host:80/metrics"));
        assert_eq!(of("http://host:80/").as_deref(), Ok("http://host:80/metrics"));
        assert_eq!(of("http://host:80/a/m").as_deref(), Ok("http://host:80/a/m"));
        assert_eq!("a/file".parse(), Ok(Source::File("a/file".into())));
        assert_eq!("serve:a/kv.sock".parse(), Ok(Source::Served("a/kv.sock".into())));
        assert!(of("https://host").is_err_and(|why| why.contains("http://")));
        assert!(of("-").is_err());
    }
}
