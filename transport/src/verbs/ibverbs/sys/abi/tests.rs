use std::fmt::Write as _;
use std::io::Write as _;
use std::process::Command;

use super::*;

/// What the library makes and fills in.
fn objects() -> Vec<(String, usize)> {
    layout! {
        "struct ibv_context" Context { async_fd };
        "struct ibv_context" Context { cmd_fd };
        "struct ibv_context" Context { ops.poll_cq };
        "struct ibv_context" Context { ops.req_notify_cq };
        "struct ibv_context" Context { ops.post_srq_recv };
        "struct ibv_context" Context { ops.post_send };
        "struct ibv_context" Context { ops.post_recv };
        "struct ibv_context_ops" ContextOps;
        "struct ibv_mr" MemoryRegion;
        "struct ibv_mr" MemoryRegion { lkey };
        "struct ibv_mr" MemoryRegion { rkey };
        "struct ibv_comp_channel" CompletionChannel { fd };
        "struct ibv_qp" QueuePair { context };
        "struct ibv_qp" QueuePair { qp_num };
        "struct ibv_device_attr" DeviceAttributes;
        "struct ibv_device_attr" DeviceAttributes { max_qp_wr };
        "struct ibv_device_attr" DeviceAttributes { max_cqe };
        "struct ibv_device_attr" DeviceAttributes { max_qp_rd_atom };
        "struct ibv_device_attr" DeviceAttributes { max_qp_init_rd_atom };
        "struct ibv_device_attr" DeviceAttributes { atomic_cap };
        "struct ibv_device_attr" DeviceAttributes { phys_port_cnt };
        // Not its size: later headers append to it, what the symbol that is called fills in stays as it is here.
        "struct ibv_port_attr" PortAttributes { state };
        "struct ibv_port_attr" PortAttributes { active_mtu };
        "struct ibv_port_attr" PortAttributes { gid_tbl_len };
        "struct ibv_port_attr" PortAttributes { max_msg_sz };
        "struct ibv_port_attr" PortAttributes { lid };
        "struct ibv_port_attr" PortAttributes { link_layer };
        "struct ibv_port_attr" PortAttributes { port_cap_flags2 };
        "struct ibv_gid_entry" GidEntry;
        "struct ibv_gid_entry" GidEntry { gid_index };
        "struct ibv_gid_entry" GidEntry { gid_type };
        "struct ibv_async_event" AsyncEvent;
        "struct ibv_async_event" AsyncEvent { event_type };
    }
    .into()
}

/// What is filled in here, and completions.
fn requests() -> Vec<(String, usize)> {
    layout! {
        "struct ibv_qp_init_attr" InitAttributes;
        "struct ibv_qp_init_attr" InitAttributes { cap };
        "struct ibv_qp_init_attr" InitAttributes { cap.max_inline_data };
        "struct ibv_qp_init_attr" InitAttributes { qp_type };
        "struct ibv_srq_init_attr" SharedQueueAttributes;
        "struct ibv_qp_attr" Attributes;
        "struct ibv_qp_attr" Attributes { path_mtu };
        "struct ibv_qp_attr" Attributes { rq_psn };
        "struct ibv_qp_attr" Attributes { sq_psn };
        "struct ibv_qp_attr" Attributes { dest_qp_num };
        "struct ibv_qp_attr" Attributes { qp_access_flags };
        "struct ibv_qp_attr" Attributes { ah_attr };
        "struct ibv_qp_attr" Attributes { ah_attr.grh.sgid_index };
        "struct ibv_qp_attr" Attributes { ah_attr.grh.hop_limit };
        "struct ibv_qp_attr" Attributes { ah_attr.dlid };
        "struct ibv_qp_attr" Attributes { ah_attr.is_global };
        "struct ibv_qp_attr" Attributes { ah_attr.port_num };
        "struct ibv_qp_attr" Attributes { pkey_index };
        "struct ibv_qp_attr" Attributes { max_rd_atomic };
        "struct ibv_qp_attr" Attributes { max_dest_rd_atomic };
        "struct ibv_qp_attr" Attributes { min_rnr_timer };
        "struct ibv_qp_attr" Attributes { port_num };
        "struct ibv_qp_attr" Attributes { timeout };
        "struct ibv_qp_attr" Attributes { retry_cnt };
        "struct ibv_qp_attr" Attributes { rnr_retry };
        "struct ibv_sge" ScatterGather;
        "struct ibv_sge" ScatterGather { lkey };
        "struct ibv_send_wr" SendRequest;
        "struct ibv_send_wr" SendRequest { sg_list };
        "struct ibv_send_wr" SendRequest { opcode };
        "struct ibv_send_wr" SendRequest { send_flags };
        "struct ibv_send_wr" SendRequest { imm_data };
        "struct ibv_send_wr" SendRequest { wr.rdma.rkey };
        "struct ibv_send_wr" SendRequest { wr.atomic.swap };
        "struct ibv_send_wr" SendRequest { wr.atomic.rkey };
        "struct ibv_recv_wr" ReceiveRequest;
        "struct ibv_recv_wr" ReceiveRequest { num_sge };
        "struct ibv_wc" Completion;
        "struct ibv_wc" Completion { status };
        "struct ibv_wc" Completion { opcode };
        "struct ibv_wc" Completion { byte_len };
        "struct ibv_wc" Completion { imm_data };
        "struct ibv_wc" Completion { qp_num };
    }
    .into()
}

/// What a C program says that prints these expressions; an error if there is no compiler or header.
fn ask_the_header(expressions: &[(String, usize)]) -> Result<Vec<usize>, String> {
    let folder = tempfile::tempdir().unwrap();
    let [source, program] = ["ask.c", "ask"].map(|name| folder.path().join(name));
    let mut text = String::from(
        "#include <infiniband/mlx5dv.h>\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {\n",
    );
    for (expression, _) in expressions {
        writeln!(text, "printf(\"%zu\\n\", (size_t)({expression}));").unwrap();
    }
    text.push_str("return 0;\n}\n");
    std::fs::write(&source, text).unwrap();
    let compiled = Command::new("cc").arg(&source).arg("-o").arg(&program).output();
    let compiled = compiled.map_err(|cause| format!("there is no cc: {cause}"))?;
    let complaint = String::from_utf8_lossy(&compiled.stderr);
    if complaint.contains("infiniband/mlx5dv.h: No such file") {
        return Err("there is no infiniband/mlx5dv.h (libibverbs-dev)".into());
    }
    assert!(compiled.status.success(), "{complaint}");
    let output = Command::new(&program).output().unwrap();
    let lines = String::from_utf8(output.stdout).unwrap();
    Ok(lines.lines().map(|line| line.parse().unwrap()).collect())
}

#[test]
fn everything_is_where_the_header_says() {
    let constants = CONSTANTS.iter().map(|&(name, value)| (name.to_owned(), value as usize));
    let expected = [objects(), requests(), constants.collect(), mlx5::places()].concat();
    match ask_the_header(&expected) {
        Ok(said) => {
            let differing: Vec<_> = expected
                .iter()
                .zip(&said)
                .filter(|((_, here), there)| here != *there)
                .map(|((expression, here), there)| format!("{expression}: {there}, here {here}"))
                .collect();
            assert_eq!(said.len(), expected.len());
            assert!(differing.is_empty(), "{differing:#?}");
        }
        Err(reason) => {
            let line = format!("skip: layouts of libibverbs: {reason}\n");
            std::io::stderr().write_all(line.as_bytes()).unwrap();
        }
    }
}
