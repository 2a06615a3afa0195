//! Types of settings that are more than a number.

use std::convert::Infallible;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::collective::Collective;

/// An algorithm chosen by hand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlgorithmChoice {
    /// For which collective; `None`: for all.
    pub collective: Option<Collective>,
    /// Name of the algorithm; the planner knows which names there are.
    pub algorithm: String,
}

impl FromStr for AlgorithmChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((name, algorithm)) = text.split_once(':') else {
            return Ok(Self { collective: None, algorithm: text.to_owned() });
        };
        let collective = Collective::ALL.into_iter().find(|kind| kind.name() == name);
        match collective {
            None => Err(format!("there is no collective {name:?}")),
            Some(_) if algorithm.is_empty() => Err(format!("no algorithm after {name:?}")),
            Some(_) => Ok(Self { collective, algorithm: algorithm.to_owned() }),
        }
    }
}

impl fmt::Display for AlgorithmChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(collective) = self.collective {
            write!(f, "{}:", collective.name())?;
        }
        f.write_str(&self.algorithm)
    }
}

/// What carries tiles between hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Network {
    /// RDMA verbs on rails that have them at both ends, else TCP.
    #[default]
    Auto,
    /// TCP.
    Tcp,
    /// RDMA verbs; a rail without them is an error.
    Verbs,
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "tcp" => Ok(Self::Tcp),
            "verbs" => Ok(Self::Verbs),
            _ => Err(format!("there is no network {text:?}")),
        }
    }
}

/// What ranks on one host do without the host, in collectives on memory of GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CudaPeers {
    /// Nothing.
    Off,
    /// Kernels work on memory of the library.
    Staged,
    /// Kernels work on buffers of the program, where all ranks can map them.
    #[default]
    Mapped,
}

impl FromStr for CudaPeers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "0" => Ok(Self::Off),
            "staged" => Ok(Self::Staged),
            "1" => Ok(Self::Mapped),
            _ => Err(format!("there is no way {text:?}")),
        }
    }
}

/// Whether the system copies between the processes of a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CrossMemoryAttach {
    /// It does not.
    Never,
    /// Where that is found to be faster than shared memory.
    #[default]
    Measured,
    /// Wherever it can be done.
    Always,
}

impl FromStr for CrossMemoryAttach {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "0" => Ok(Self::Never),
            "auto" => Ok(Self::Measured),
            "always" => Ok(Self::Always),
            _ => Err(format!("there is no way {text:?}")),
        }
    }
}

/// What ranks on several hosts do without the processor, in collectives on memory of GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CudaNetwork {
    /// Nothing.
    #[default]
    Off,
    /// NICs read and write pinned memory of the host.
    Pinned,
    /// NICs read and write memory of the GPU, where they reach it.
    Device,
}

impl FromStr for CudaNetwork {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "0" => Ok(Self::Off),
            "pinned" => Ok(Self::Pinned),
            "1" => Ok(Self::Device),
            _ => Err(format!("there is no way {text:?}")),
        }
    }
}

/// Where compiled kernels are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CudaCache {
    /// Nowhere.
    Off,
    /// In the folder for caches of the user, which only the environment knows; nowhere without one.
    #[default]
    OfUser,
    /// In this folder.
    Folder(PathBuf),
}

impl FromStr for CudaCache {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "" => Ok(Self::Off),
            "auto" => Ok(Self::OfUser),
            folder => Ok(Self::Folder(folder.into())),
        }
    }
}

/// A host, by name or address, and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Host name or address, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (host, port) = text.rsplit_once(':').ok_or("the port is missing")?;
        let port = port.parse().map_err(|_| format!("{port:?} is not a port"))?;
        let bracketed = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let host = match bracketed {
            Some(inner) => inner,
            None if host.contains(':') => return Err("an IPv6 address needs brackets".to_owned()),
            None => host,
        };
        if host.is_empty() || port == 0 {
            return Err("host or port is missing".to_owned());
        }
        Ok(Self { host: host.to_owned(), port })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// A secret text, which is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct PassPhrase(String);

impl PassPhrase {
    /// The text itself.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl FromStr for PassPhrase {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Debug for PassPhrase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PassPhrase(hidden)")
    }
}

/// Chooses interfaces by name, in the syntax of `NCCL_SOCKET_IFNAME`.
///
/// Without names (the default) it expresses no wish.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterfaceFilter {
    excludes: bool,
    exact: bool,
    names: Vec<String>,
}

impl InterfaceFilter {
    /// Whether nothing was asked for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Whether names were given that are wanted, rather than unwanted.
    #[must_use]
    pub fn names_what_it_wants(&self) -> bool {
        !self.is_empty() && !self.excludes
    }

    /// Whether the interface called `name` is wanted.
    #[must_use]
    pub fn admits(&self, name: &str) -> bool {
        let listed = self.names.iter().any(|listed| {
            if self.exact { name == listed } else { name.starts_with(listed.as_str()) }
        });
        self.is_empty() || listed != self.excludes
    }
}

impl FromStr for InterfaceFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (excludes, rest) = match text.strip_prefix('^') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (exact, rest) = match rest.strip_prefix('=') {
            Some(rest) => (true, rest),
            None => (false, rest),
        };
        if rest.is_empty() && text != rest {
            return Err("no name follows".to_owned());
        }
        Ok(Self { excludes, exact, names: list(rest)? })
    }
}

impl fmt::Display for InterfaceFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let excludes = if self.excludes { "^" } else { "" };
        let exact = if self.exact { "=" } else { "" };
        write!(f, "{excludes}{exact}{}", self.names.join(","))
    }
}

/// The values of a list with commas; the empty text is the empty list.
pub(super) fn list<T: FromStr<Err: fmt::Display>>(text: &str) -> Result<Vec<T>, String> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    text.split(',')
        .map(|part| match part.trim() {
            "" => Err("an element of the list is empty".to_owned()),
            part => part.parse().map_err(|cause| format!("{part:?}: {cause}")),
        })
        .collect()
}

/// The value, or nothing for the empty text.
pub(super) fn optional<T: FromStr<Err: fmt::Display>>(text: &str) -> Result<Option<T>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|cause: T::Err| cause.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admitted(filter: &str) -> Vec<&'static str> {
        let filter: InterfaceFilter = filter.parse().unwrap();
        ["lo", "eth0", "eth1", "eth10", "ib0"]
            .into_iter()
            .filter(|name| filter.admits(name))
            .collect()
    }

    #[test]
    fn the_filter_has_the_syntax_of_nccl() {
        assert_eq!(admitted("eth"), ["eth0", "eth1", "eth10"]);
        assert_eq!(admitted("=eth1"), ["eth1"]);
        assert_eq!(admitted("=eth0,ib0"), ["eth0", "ib0"]);
        assert_eq!(admitted("^eth1"), ["lo", "eth0", "ib0"]);
        assert_eq!(admitted("^=eth1,lo"), ["eth0", "eth10", "ib0"]);
        assert_eq!(admitted("").len(), 5);
    }

    #[test]
    fn filters_and_endpoints_print_as_they_are_written() {
        for text in ["", "eth", "=eth0,eth1", "^lo", "^=docker0"] {
            assert_eq!(text.parse::<InterfaceFilter>().unwrap().to_string(), text);
        }
        for text in ["node-1:29500", "10.0.0.1:1", "[fe00::1]:80"] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
        }
        for text in ["", ":1", "a:0", "a:b", "::1:80", "^"] {
            assert!(text.parse::<Endpoint>().is_err(), "{text}");
        }
        assert!("^=".parse::<InterfaceFilter>().is_err());
    }

    #[test]
    fn an_algorithm_may_be_for_one_collective() {
        let choice: AlgorithmChoice = "allgather:ring".parse().unwrap();
        assert_eq!(choice.collective, Some(Collective::AllGather));
        assert_eq!(choice.algorithm, "ring");
        assert_eq!("tree".parse::<AlgorithmChoice>().unwrap().collective, None);
        assert!("allgather:".parse::<AlgorithmChoice>().is_err());
        for text in ["allgather:ring", "tree"] {
            assert_eq!(text.parse::<AlgorithmChoice>().unwrap().to_string(), text);
        }
    }
}
