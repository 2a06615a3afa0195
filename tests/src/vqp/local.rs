//! The server of `--local`: this program once more, on pretended NICs of the same machine.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{self, Signal};

use super::arguments::Arguments;
use crate::Outcome;
use crate::error::Failure;

/// Where a server of `--local` listens: the kernel chooses the port.
pub(super) const ADDRESS: &str = "127.0.0.1:0";

/// The process of the server. It is killed when this is dropped, and by the kernel when this process
/// ends.
#[derive(Debug)]
pub struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    /// Starts it and waits until it listens.
    ///
    /// # Errors
    /// It cannot be started, or ends.
    pub fn start(arguments: &Arguments) -> Outcome<Self> {
        let failed = |cause| Failure::system("starting the server", cause);
        let program = std::env::current_exe().map_err(failed)?;
        let mut command = Command::new(program);
        let pid = process::getpid().as_raw_nonzero();
        command.arg(format!("--member-of={pid}")).arg("--limit").arg(limit(arguments));
        command.args(["--local", "--rails", &arguments.rails.to_string()]);
        if let Some(device) = &arguments.device {
            command.args(["--device", device]);
        }
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut child = spawned.map_err(failed)?;
        let output = child.stdout.take();
        // From here on whatever fails ends the process too.
        let mut server = Self { child, address: SocketAddr::from(([127, 0, 0, 1], 0)) };
        let mut line = String::new();
        if let Some(output) = output {
            BufReader::new(output).read_line(&mut line).map_err(failed)?;
        }
        server.address = line.trim().parse().map_err(|_| server.told_nothing())?;
        Ok(server)
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits for its end, after the client has come to its own.
    ///
    /// # Errors
    /// That of the client; or the server has failed.
    pub fn finish(mut self, outcome: Outcome<()>) -> Outcome<()> {
        // A server whose client has failed may wait for it: dropping this ends it.
        outcome?;
        let status = self.child.wait();
        let status = status.map_err(|cause| Failure::system("waiting for the server", cause))?;
        if status.success() {
            return Ok(());
        }
        Err(ended(status))
    }

    fn told_nothing(&mut self) -> Failure {
        match self.child.wait() {
            Ok(status) => ended(status),
            Err(cause) => Failure::system("waiting for the server", cause),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // One that has ended already is only waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn ended(status: ExitStatus) -> Failure {
    Failure::system("the server", format!("it ended with {status}"))
}

/// As it is written on a command line.
fn limit(arguments: &Arguments) -> String {
    humantime::format_duration(arguments.limit).to_string()
}

/// Makes this process, a server of `--local`, end with the one that has started it, and says where it
/// listens.
///
/// # Errors
/// The other process is gone already.
pub(super) fn attach(launcher: i32, address: SocketAddr) -> Outcome<()> {
    process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|cause| Failure::system("tying this process to its launcher", cause))?;
    // It may have ended before that call.
    if process::getppid().map(|pid| pid.as_raw_nonzero().get()) != Some(launcher) {
        return Err(Failure::Input("the launcher of this process is gone".to_owned()));
    }
    let mut output = std::io::stdout();
    writeln!(output, "{address}")
        .and_then(|()| output.flush())
        .map_err(|cause| Failure::system("saying where it listens", cause))
}
