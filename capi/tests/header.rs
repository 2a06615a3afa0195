//! The header and the library say the same.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::fs;
use std::mem::offset_of;
use std::process::Command;

use ccl_core::ResultCode;
use ccl_core::collective::Collective;
use ccl_core::datatype::{DataType, ReduceOp};
use ccl_core::health::{RailState, Verdict};
use r2ccl::abi::{self, ConfigRecord, RailHealthRecord, SimInfoRecord, UniqueIdRecord};
use r2ccl::vqp::abi as vqp;
use support::{Workshop, include_folder, succeeded};

const RESULTS: [ResultCode; 9] = [
    ResultCode::Success,
    ResultCode::UnhandledCudaError,
    ResultCode::SystemError,
    ResultCode::InternalError,
    ResultCode::InvalidArgument,
    ResultCode::InvalidUsage,
    ResultCode::RemoteError,
    ResultCode::InProgress,
    ResultCode::Timeout,
];

const VERDICTS: [Verdict; 4] =
    [Verdict::LocalNic, Verdict::RemoteNic, Verdict::Path, Verdict::Unknown];

/// `InvalidArgument` becomes `CCL_INVALID_ARGUMENT`.
fn words(variant: impl Debug) -> String {
    let mut name = String::from("CCL");
    for letter in format!("{variant:?}").chars() {
        if letter.is_ascii_uppercase() {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    name
}

/// `CCL_<FAMILY>_<NAME OF THE VARIANT>`.
fn prefixed(family: &str, variant: impl Debug) -> String {
    words(variant).replacen("CCL_", &format!("CCL_{family}_"), 1)
}

/// `AllReduce` becomes `CCL_ALLREDUCE`.
fn one_word(variant: impl Debug) -> String {
    format!("CCL_{variant:?}").to_uppercase()
}

/// The header without comments and without the preprocessor's lines.
fn header_code() -> String {
    let path = include_folder().join("r2ccl/ccl.h");
    let header = fs::read_to_string(path).expect("read the header");
    let mut code = String::new();
    let mut rest = header.as_str();
    while let Some((before, after)) = rest.split_once("/*") {
        code += before;
        rest = after.split_once("*/").expect("an ended comment").1;
    }
    code += rest;
    let joined = code.replace("\\\n", " ");
    let lines = joined.lines().filter(|line| !line.trim_start().starts_with('#'));
    lines.map(|line| format!("{line}\n")).collect()
}

/// Names and values of the enumerators of the header.
fn enumerators() -> BTreeMap<String, i64> {
    let code = header_code();
    let parse = |item: &str| {
        let (name, value) = item.split_once('=')?;
        let value = value.trim();
        let number = match value.strip_prefix("0x") {
            Some(digits) => i64::from_str_radix(digits, 16),
            None => value.parse(),
        };
        Some((name.trim().to_owned(), number.ok()?))
    };
    code.split([',', '{', '}']).filter_map(parse).collect()
}

/// Names of the functions of the header.
fn functions() -> BTreeSet<String> {
    let code = header_code();
    let name = |before: &str| {
        let start = before.rfind(|c: char| !c.is_ascii_alphanumeric() && c != '_')? + 1;
        before[start..].starts_with("ccl_").then(|| before[start..].to_owned())
    };
    let ends = code.match_indices('(').map(|(end, _)| end);
    ends.filter_map(|end| name(&code[..end])).collect()
}

#[test]
fn enumerators_are_the_librarys_numbers() {
    let mut expected: Vec<(String, i64)> = Vec::new();
    expected.extend(RESULTS.map(|code| (words(code), code as i64)));
    expected.extend(DataType::ALL.map(|datatype| (one_word(datatype), datatype as i64)));
    expected.extend(ReduceOp::ALL.map(|op| (one_word(op), op as i64)));
    let collectives = Collective::ALL.into_iter().filter(|one| *one != Collective::PointToPoint);
    expected.extend(collectives.map(|one| (one_word(one), one as i64)));
    expected.extend(RailState::ALL.map(|state| (prefixed("RAIL", state), state as i64)));
    expected.extend(VERDICTS.map(|verdict| (prefixed("VERDICT", verdict), verdict as i64)));
    for (name, count) in [
        ("CCL_NUM_RESULTS", RESULTS.len()),
        ("CCL_NUM_DATATYPES", DataType::ALL.len()),
        ("CCL_NUM_OPS", ReduceOp::ALL.len()),
        ("CCL_MAX_REDOP", 0x7fff_ffff),
    ] {
        expected.push((name.to_owned(), i64::try_from(count).unwrap()));
    }
    for (name, flags) in [
        ("CCL_WIN_DEFAULT", abi::WINDOW_DEFAULT),
        ("CCL_WIN_COLL_SYMMETRIC", abi::WINDOW_SYMMETRIC),
    ] {
        expected.push((name.to_owned(), i64::from(flags)));
    }
    assert_eq!(abi::FIRST_USER_OP as usize, ReduceOp::ALL.len());
    expected.extend(enumerators_of_queue_pairs());
    expected.sort();
    assert_eq!(enumerators().into_iter().collect::<Vec<_>>(), expected);
}

fn enumerators_of_queue_pairs() -> Vec<(String, i64)> {
    let evidences = vqp::EVIDENCES.map(|one| match one {
        None => "CCL_VQP_OFF".to_owned(),
        Some(evidence) => prefixed("VQP", evidence),
    });
    let tables = [
        evidences.to_vec(),
        vqp::OPERATIONS.map(|name| format!("CCL_VQP_{name}")).to_vec(),
        vqp::OPCODES.map(|one| prefixed("VQP_OPCODE", one)).to_vec(),
        vqp::STATUSES.map(|one| prefixed("VQP_STATUS", one)).to_vec(),
        vqp::STATES.map(|one| prefixed("VQP_STATE", one)).to_vec(),
        vqp::EVENT_KINDS.map(|one| prefixed("VQP_EVENT", one)).to_vec(),
    ];
    let mut numbered = Vec::new();
    for table in tables {
        numbered.extend(table.into_iter().zip(0..));
    }
    numbered.extend(
        [
            ("LOCAL", 0),
            ("REMOTE_WRITE", vqp::REMOTE_WRITE),
            ("REMOTE_READ", vqp::REMOTE_READ),
            ("REMOTE_ATOMIC", vqp::REMOTE_ATOMIC),
        ]
        .map(|(name, number)| (format!("CCL_VQP_ACCESS_{name}"), i64::from(number))),
    );
    numbered
}

/// The numbers that the compiler of C has for these calls of SHOW.
fn shown(calls: &str) -> Vec<i64> {
    let folder = tempfile::tempdir().expect("a folder for a program");
    let source = folder.path().join("layout.c");
    let head = "#include <stdio.h>\n#include \"r2ccl/ccl.h\"\n\
                #define SHOW(x) printf(\"%lld \", (long long)(x))\n";
    fs::write(&source, format!("{head}int main(void) {{\n{calls}\nreturn 0;\n}}\n"))
        .expect("it can be written");
    let printed = succeeded(&mut Command::new(Workshop::new().build(&source)));
    printed.split_whitespace().map(|number| number.parse().expect("a number")).collect()
}

#[test]
fn records_of_queue_pairs_are_the_compilers() {
    let seen = shown(
        "\
             SHOW(sizeof(ccl_vqp_config_t)); SHOW(offsetof(ccl_vqp_config_t, evidence));\n\
             SHOW(offsetof(ccl_vqp_config_t, settle_ms)); SHOW(CCL_VQP_CONFIG_MAGIC);\n\
             ccl_vqp_config_t c = CCL_VQP_CONFIG_INITIALIZER;\n\
             SHOW(c.size); SHOW(c.magic); SHOW(c.version); SHOW(c.evidence); SHOW(c.settle_ms);\n\
             SHOW(sizeof(ccl_vqp_remote_t)); SHOW(offsetof(ccl_vqp_remote_t, key));\n\
             SHOW(sizeof(ccl_vqp_request_t)); SHOW(offsetof(ccl_vqp_request_t, region));\n\
             SHOW(offsetof(ccl_vqp_request_t, bytes)); SHOW(offsetof(ccl_vqp_request_t, remote_key));\n\
             SHOW(offsetof(ccl_vqp_request_t, operand));\n\
             SHOW(sizeof(ccl_vqp_completion_t)); SHOW(offsetof(ccl_vqp_completion_t, bytes));\n\
             SHOW(offsetof(ccl_vqp_completion_t, has_immediate));\n\
             SHOW(sizeof(ccl_vqp_event_t)); SHOW(offsetof(ccl_vqp_event_t, kind));\n\
             SHOW(sizeof(ccl_vqp_info_t)); SHOW(offsetof(ccl_vqp_info_t, evidence));\n\
             SHOW(offsetof(ccl_vqp_info_t, repairs)); SHOW(offsetof(ccl_vqp_info_t, returns));\n\
        ",
    );
    let initial = vqp::ConfigRecord::INITIALIZER;
    let size = |size: usize| i64::try_from(size).unwrap();
    let mut expected = vec![
        size(size_of::<vqp::ConfigRecord>()),
        size(offset_of!(vqp::ConfigRecord, evidence)),
        size(offset_of!(vqp::ConfigRecord, settle_ms)),
        i64::from(vqp::CONFIG_MAGIC),
        size(initial.size),
    ];
    expected.extend([initial.magic, initial.version].map(i64::from));
    expected.extend([initial.evidence, initial.settle_ms].map(i64::from));
    expected.extend(
        [
            size_of::<vqp::RemoteRecord>(),
            offset_of!(vqp::RemoteRecord, key),
            size_of::<vqp::RequestRecord>(),
            offset_of!(vqp::RequestRecord, region),
            offset_of!(vqp::RequestRecord, bytes),
            offset_of!(vqp::RequestRecord, remote_key),
            offset_of!(vqp::RequestRecord, operand),
            size_of::<vqp::CompletionRecord>(),
            offset_of!(vqp::CompletionRecord, bytes),
            offset_of!(vqp::CompletionRecord, has_immediate),
            size_of::<vqp::EventRecord>(),
            offset_of!(vqp::EventRecord, kind),
            size_of::<vqp::InfoRecord>(),
            offset_of!(vqp::InfoRecord, evidence),
            offset_of!(vqp::InfoRecord, repairs),
            offset_of!(vqp::InfoRecord, returns),
        ]
        .map(size),
    );
    assert_eq!(seen, expected);
}

#[test]
fn records_and_constants_are_the_compilers() {
    let seen = shown(
        "\
             SHOW(sizeof(ccl_unique_id_t)); SHOW(sizeof(ccl_config_t)); SHOW(_Alignof(ccl_config_t));\n\
             SHOW(offsetof(ccl_config_t, size)); SHOW(offsetof(ccl_config_t, magic));\n\
             SHOW(offsetof(ccl_config_t, version)); SHOW(offsetof(ccl_config_t, blocking));\n\
             SHOW(offsetof(ccl_config_t, timeout_ms)); SHOW(offsetof(ccl_config_t, comm_name));\n\
             SHOW(offsetof(ccl_config_t, split_share));\n\
             SHOW(sizeof(ccl_result_t)); SHOW(sizeof(ccl_datatype_t)); SHOW(sizeof(ccl_redop_t));\n\
             SHOW(CCL_CONFIG_MAGIC); SHOW(CCL_VERSION_CODE); SHOW(CCL_CONFIG_UNDEF_INT);\n\
             SHOW(CCL_SPLIT_NOCOLOR); SHOW(CCL_SHRINK_DEFAULT); SHOW(CCL_SHRINK_ABORT);\n\
             SHOW(CCL_UNIQUE_ID_BYTES);\n\
             ccl_config_t c = CCL_CONFIG_INITIALIZER;\n\
             SHOW(c.size); SHOW(c.magic); SHOW(c.version); SHOW(c.blocking); SHOW(c.timeout_ms);\n\
             SHOW(c.comm_name != NULL); SHOW(c.split_share);\n\
             SHOW(sizeof(ccl_rail_health_t)); SHOW(offsetof(ccl_rail_health_t, verdict));\n\
             SHOW(offsetof(ccl_rail_health_t, bytes_per_second));\n\
             SHOW(offsetof(ccl_rail_health_t, resent_bytes));\n\
             SHOW(offsetof(ccl_rail_health_t, last_fault_ns));\n\
             SHOW(offsetof(ccl_rail_health_t, evidence)); SHOW(CCL_NO_FAULT);\n\
             SHOW(sizeof(ccl_sim_info_t)); SHOW(offsetof(ccl_sim_info_t, estimated_time));\n\
             SHOW(CCL_SIM_INFO_MAGIC);\n\
        ",
    );
    let sizes = [
        size_of::<UniqueIdRecord>(),
        size_of::<ConfigRecord>(),
        align_of::<ConfigRecord>(),
        offset_of!(ConfigRecord, size),
        offset_of!(ConfigRecord, magic),
        offset_of!(ConfigRecord, version),
        offset_of!(ConfigRecord, blocking),
        offset_of!(ConfigRecord, timeout_ms),
        offset_of!(ConfigRecord, comm_name),
        offset_of!(ConfigRecord, split_share),
        4,
        4,
        4,
    ];
    let initial = ConfigRecord::INITIALIZER;
    let mut expected: Vec<i64> = sizes.map(|size| i64::try_from(size).unwrap()).to_vec();
    expected.extend([i64::from(abi::CONFIG_MAGIC), i64::from(abi::VERSION_CODE)]);
    let numbers =
        [abi::CONFIG_UNDEF_INT, abi::SPLIT_NO_COLOR, abi::SHRINK_DEFAULT, abi::SHRINK_ABORT];
    expected.extend(numbers.map(i64::from));
    expected.extend([abi::UNIQUE_ID_BYTES, initial.size].map(|size| i64::try_from(size).unwrap()));
    expected.extend([initial.magic, initial.version].map(i64::from));
    expected.extend([initial.blocking, initial.timeout_ms].map(i64::from));
    expected.extend([i64::from(!initial.comm_name.is_null()), i64::from(initial.split_share)]);
    let health = [
        size_of::<RailHealthRecord>(),
        offset_of!(RailHealthRecord, verdict),
        offset_of!(RailHealthRecord, bytes_per_second),
        offset_of!(RailHealthRecord, resent_bytes),
        offset_of!(RailHealthRecord, last_fault_ns),
        offset_of!(RailHealthRecord, evidence),
    ];
    expected.extend(health.map(|size| i64::try_from(size).unwrap()));
    expected.push(abi::NO_FAULT.cast_signed());
    let simulation = [size_of::<SimInfoRecord>(), offset_of!(SimInfoRecord, estimated_time)];
    expected.extend(simulation.map(|size| i64::try_from(size).unwrap()));
    expected.push(i64::from(abi::SIM_INFO_MAGIC));
    assert_eq!(seen, expected);
}

#[test]
fn the_library_exports_the_functions_of_the_header_and_nothing_else() {
    let library = Workshop::new();
    let nm = Command::new("nm").args(["-D", "--defined-only"]).arg(&library.library).output();
    let Ok(output) = nm else {
        support::skip("the exported names: there is no nm");
        return;
    };
    let listing = support::check("nm", &output);
    let exported: BTreeSet<String> = listing
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2))
        .map(str::to_owned)
        .collect();
    assert_eq!(exported, functions());
}

#[test]
fn the_library_has_its_name_and_stays_loaded() {
    let library = Workshop::new();
    let readelf = Command::new("readelf").arg("-dW").arg(&library.library).output();
    let Ok(output) = readelf else {
        support::skip("the name of the library: there is no readelf");
        return;
    };
    let listing = support::check("readelf", &output);
    let soname = format!("[libr2ccl.so.{}]", env!("CARGO_PKG_VERSION_MAJOR"));
    assert!(listing.contains(&soname), "{listing}");
    assert!(listing.contains("NODELETE"), "{listing}");
}

#[test]
fn the_header_is_cpp_too() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("header.cpp");
    let text = "#include \"r2ccl/ccl.h\"\n\
                ccl_config_t config = CCL_CONFIG_INITIALIZER;\n\
                ccl_request_t request = CCL_REQUEST_NULL;\n";
    fs::write(&source, text).unwrap();
    let mut compiler = Command::new("g++");
    compiler.args(["-std=c++11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only"]);
    compiler.arg("-I").arg(include_folder()).arg(source);
    match compiler.output() {
        Ok(output) => drop(support::check("g++", &output)),
        Err(_) => support::skip("the header in C++: there is no g++"),
    }
}

#[test]
fn pkg_config_is_told_the_version() {
    let file = include_folder().with_file_name("r2ccl.pc");
    let text = fs::read_to_string(file).expect("read the description");
    assert!(text.contains(&format!("\nVersion: {}\n", env!("CARGO_PKG_VERSION"))), "{text}");
}
