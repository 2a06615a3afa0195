//! `vqp_send_bw`: see [`ccl_tests::vqp::plan::Test::SendBandwidth`].

use std::process::ExitCode;

fn main() -> ExitCode {
    ccl_tests::vqp::main(ccl_tests::vqp::plan::Test::SendBandwidth)
}
