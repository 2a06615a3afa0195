//! Requests from outside while a command runs: one line each, answered with one line of JSON.
//!
//! The socket has a name that is no file: it vanishes with the testbed. It obeys root and the user
//! who started it.

use std::io::{BufRead as _, BufReader, ErrorKind, Write as _};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

use super::failure::{Failure, Outcome};
use super::journal::Event;
use super::run::Notice;

/// In front of the names of all control sockets.
const PREFIX: &str = "r2ccl-testbed/";

/// No action takes as long, even if other programs keep the kernel from changing networks for a while.
const PATIENCE: Duration = Duration::from_secs(30);

/// Listens for requests and hands them to `notices`, until the process ends.
///
/// # Errors
/// The name is taken.
pub fn listen(name: &str, notices: &Sender<Notice>) -> Outcome<()> {
    let failed = |cause| Failure::system(format!("control socket {name:?}"), cause);
    let listener = UnixListener::bind_addr(&address(name).map_err(failed)?).map_err(failed)?;
    let notices = notices.clone();
    thread::spawn(move || {
        for stream in listener.incoming().flatten().filter(is_allowed) {
            let notices = notices.clone();
            thread::spawn(move || serve(&stream, &notices));
        }
    });
    Ok(())
}

/// Sends one request to the testbed called `name` and returns its answer.
///
/// # Errors
/// There is no such testbed, or it does not answer.
pub fn tell(name: &str, request: &str) -> Outcome<Event> {
    let failed = |cause| Failure::system(format!("testbed {name:?}"), cause);
    let stream = address(name).and_then(|address| UnixStream::connect_addr(&address));
    let mut stream = stream.map_err(failed)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    stream.write_all(format!("{request}\n").as_bytes()).map_err(failed)?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).map_err(|cause| {
        let is_late = cause.kind() == ErrorKind::WouldBlock;
        let late = || std::io::Error::other(format!("no answer in {PATIENCE:?}"));
        failed(if is_late { late() } else { cause })
    })?;
    serde_json::from_str(&answer)
        .map_err(|cause| Failure::system(format!("the answer of testbed {name:?}"), cause))
}

fn address(name: &str) -> std::io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("{PREFIX}{name}"))
}

/// Who asks is outside of the process namespace, so that its process has no number here.
fn is_allowed(stream: &UnixStream) -> bool {
    let own = rustix::process::geteuid().as_raw();
    getsockopt(stream, PeerCredentials).is_ok_and(|peer| [0, own].contains(&peer.uid()))
}

/// Answers one client until it leaves.
fn serve(stream: &UnixStream, notices: &Sender<Notice>) {
    let mut writer = stream;
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        let event = obey(&line, notices);
        if writer.write_all(format!("{}\n", event.to_json()).as_bytes()).is_err() {
            return;
        }
    }
}

fn obey(line: &str, notices: &Sender<Notice>) -> Event {
    let action = match line.parse() {
        Ok(action) => action,
        Err(reason) => return Event::Refused { reason },
    };
    let (answer, answered) = channel();
    // If the run is over there is no answer either.
    let _ = notices.send(Notice::Request { action, answer });
    answered.recv().unwrap_or_else(|_| Event::Refused { reason: "the run is over".to_owned() })
}
