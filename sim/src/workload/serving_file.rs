//! A server of a language model as a file.

use serde::Deserialize;
use toml::Spanned;

use super::serving::{Load, Mode, Server};
use crate::cluster::file::Reader;
use crate::cluster::wrong::{Source, Wrong};

/// Nothing that is counted here is more.
const MOST: u32 = 1 << 20;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: String,
    cluster: String,
    model: ModelTable,
    server: ServerTable,
    load: LoadTable,
    restart: RestartTable,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ModelTable {
    parameters_billions: Spanned<f64>,
    layers: Spanned<i64>,
    hidden: Spanned<i64>,
    heads_of_keys: Spanned<i64>,
    head: Spanned<i64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ServerTable {
    mode: Mode,
    teraflops: Spanned<f64>,
    utilisation: Spanned<f64>,
    memory_gigabytes_per_second: Spanned<f64>,
    memory_utilisation: Spanned<f64>,
    sequences: Spanned<i64>,
    tokens: Spanned<i64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LoadTable {
    prompt_tokens: Spanned<i64>,
    output_tokens: Spanned<i64>,
    seconds: Spanned<f64>,
    failure_at_seconds: Spanned<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RestartTable {
    seconds: Spanned<f64>,
}

pub(super) fn parse(name: &str, text: &str) -> Result<(String, Server), Wrong> {
    let source = Source { name, text };
    let file: File = source.parse()?;
    let reader = Reader { source };
    let File { model, server, load, .. } = &file;
    let share = |number: &Spanned<f64>, what: &str| {
        let value = reader.positive(number, what)?;
        let too_much =
            || source.wrong(number.span(), format!("{what} of {value}"), "write at most 1");
        if value <= 1.0 { Ok(value) } else { Err(too_much()) }
    };
    let flops = reader.positive(&server.teraflops, "a rate")? * 1e12;
    let memory = reader.positive(&server.memory_gigabytes_per_second, "a rate")? * 1e9;
    let server = Server {
        name: file.name.clone(),
        parameters: reader.positive(&model.parameters_billions, "a size")? * 1e9,
        layers: reader.count(&model.layers, "layers", MOST)?,
        hidden: reader.count(&model.hidden, "hidden", MOST)?,
        key_heads: reader.count(&model.heads_of_keys, "heads_of_keys", MOST)?,
        head: reader.count(&model.head, "head", MOST)?,
        mode: server.mode,
        flops: flops * share(&server.utilisation, "a utilisation")?,
        memory: memory * share(&server.memory_utilisation, "a utilisation")?,
        sequences: reader.count(&server.sequences, "sequences", MOST)?,
        tokens: reader.count(&server.tokens, "tokens", MOST)?,
        restart: reader.positive(&file.restart.seconds, "a time")?,
        load: Load {
            prompt: reader.count(&load.prompt_tokens, "prompt_tokens", MOST)?,
            output: reader.count(&load.output_tokens, "output_tokens", MOST)?,
            seconds: reader.positive(&load.seconds, "a time")?,
            failure_at: reader.positive(&load.failure_at_seconds, "a time")?,
        },
    };
    Ok((file.cluster, server))
}
