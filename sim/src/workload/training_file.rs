//! A training job as a file. Where a value is not known, several may stand in brackets.

use serde::Deserialize;
use toml::Spanned;

use super::training::Training;
use crate::cluster::file::Reader;
use crate::cluster::wrong::{Source, Wrong};

/// No model has more layers, no batch more sequences than this.
const MOST: u32 = 1 << 20;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: String,
    cluster: String,
    hosts: Spanned<i64>,
    model: ModelTable,
    parallel: ParallelTable,
    batch: BatchTable,
    gradients: GradientTable,
    gpu: GpuTable,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ModelTable {
    layers: Spanned<i64>,
    hidden: Spanned<i64>,
    vocabulary: Spanned<i64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ParallelTable {
    tensor: Spanned<i64>,
    pipeline: Spanned<i64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BatchTable {
    sequences: Several<i64>,
    micro: Several<i64>,
    tokens_per_sequence: Several<i64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GradientTable {
    bytes_per_parameter: Several<f64>,
    overlap: Several<f64>,
    #[serde(default)]
    sharded: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GpuTable {
    teraflops: Spanned<f64>,
    utilisation: Several<f64>,
}

/// One value, or several in brackets.
type Several<T> = Spanned<OneOrMore<T>>;

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMore<T> {
    One(T),
    More(Vec<T>),
}

impl<T: Copy> OneOrMore<T> {
    fn list(&self) -> Vec<T> {
        match self {
            Self::One(value) => vec![*value],
            Self::More(values) => values.clone(),
        }
    }
}

/// All that a file may mean: the first is the one that is meant if nothing is said.
pub(super) fn parse(name: &str, text: &str, gpus: u32) -> Result<Vec<Training>, Wrong> {
    let source = Source { name, text };
    let file: File = source.parse()?;
    let reader = Reader { source };
    let base = base(&file, reader, gpus)?;
    let mut variants = vec![base];
    let batch = &file.batch;
    each(&mut variants, &whole(reader, &batch.sequences, "sequences")?, |t, v| t.sequences = v);
    each(&mut variants, &whole(reader, &batch.micro, "micro")?, |t, v| t.micro = v);
    let tokens = whole(reader, &batch.tokens_per_sequence, "tokens_per_sequence")?;
    each(&mut variants, &tokens, |t, v| t.tokens = v);
    let bytes = real(reader, &file.gradients.bytes_per_parameter, "a number of bytes", f64::MAX)?;
    each(&mut variants, &bytes, |t, v| t.gradient_bytes = v);
    let overlap = real(reader, &file.gradients.overlap, "an overlap", 1.0)?;
    each(&mut variants, &overlap, |t, v| t.overlap = v);
    let utilisation = real(reader, &file.gpu.utilisation, "a utilisation", 1.0)?;
    let peak = reader.positive(&file.gpu.teraflops, "a rate")? * 1e12;
    each(&mut variants, &utilisation, |t, v| t.flops = peak * v);
    if variants.iter().any(|training| training.flops <= 0.0) {
        let span = file.gpu.utilisation.span();
        return Err(source.wrong(span, "a utilisation of 0", "write numbers above 0, up to 1"));
    }
    if let Some(bad) = variants.iter().find(|training| !training.is_divisible()) {
        let group = u64::from(bad.replicas()) * u64::from(bad.micro);
        let what = format!("{} sequences are not a multiple of {group}", bad.sequences);
        let remedy = "let replicas times micro divide the sequences";
        return Err(source.wrong(batch.sequences.span(), what, remedy));
    }
    Ok(variants)
}

fn base(file: &File, reader: Reader<'_>, gpus: u32) -> Result<Training, Wrong> {
    let hosts = reader.count(&file.hosts, "hosts", MOST)?;
    let tensor = reader.count(&file.parallel.tensor, "tensor", MOST)?;
    let pipeline = reader.count(&file.parallel.pipeline, "pipeline", MOST)?;
    if !gpus.is_multiple_of(tensor) {
        let what = format!("tensor = {tensor} does not divide the {gpus} GPUs of a host");
        let good: Vec<String> = (1..=gpus)
            .filter(|size| gpus.is_multiple_of(*size))
            .map(|size| size.to_string())
            .collect();
        let remedy = format!("write {}", good.join(", "));
        return Err(reader.source.wrong(file.parallel.tensor.span(), what, remedy));
    }
    if !hosts.is_multiple_of(pipeline) {
        let what = format!("pipeline = {pipeline} does not divide the {hosts} hosts");
        let remedy = "let every stage have as many hosts";
        return Err(reader.source.wrong(file.parallel.pipeline.span(), what, remedy));
    }
    Ok(Training {
        name: file.name.clone(),
        cluster: file.cluster.clone(),
        hosts,
        gpus,
        layers: reader.count(&file.model.layers, "layers", MOST)?,
        hidden: reader.count(&file.model.hidden, "hidden", MOST)?,
        vocabulary: reader.count(&file.model.vocabulary, "vocabulary", MOST)?,
        tensor,
        pipeline,
        sequences: 1,
        micro: 1,
        tokens: 1,
        gradient_bytes: 0.0,
        overlap: 0.0,
        is_sharded: file.gradients.sharded,
        flops: 1.0,
    })
}

/// The name of the cluster in a file of a training job.
pub(super) fn cluster_of(name: &str, text: &str) -> Result<String, Wrong> {
    let file: File = Source { name, text }.parse()?;
    Ok(file.cluster)
}

fn whole(reader: Reader<'_>, values: &Several<i64>, key: &str) -> Result<Vec<u32>, Wrong> {
    let list = values.get_ref().list();
    let good = |value: &i64| u32::try_from(*value).ok().filter(|value| (1..=MOST).contains(value));
    let numbers: Option<Vec<u32>> = list.iter().map(good).collect();
    numbers.filter(|numbers| !numbers.is_empty()).ok_or_else(|| {
        let what = format!("{key} = {list:?} makes no sense");
        reader.source.wrong(values.span(), what, "write whole numbers above zero")
    })
}

fn real(
    reader: Reader<'_>,
    values: &Several<f64>,
    what: &str,
    most: f64,
) -> Result<Vec<f64>, Wrong> {
    let list = values.get_ref().list();
    let is_good = !list.is_empty() && list.iter().all(|value| (0.0..=most).contains(value));
    is_good.then(|| list.clone()).ok_or_else(|| {
        let remedy = match most {
            most if most < f64::MAX => format!("write numbers from 0 to {most}"),
            _ => "write numbers from 0 on".to_owned(),
        };
        reader.source.wrong(values.span(), format!("{what} of {list:?}"), remedy)
    })
}

/// Every variant with each of the values.
fn each<T: Copy>(variants: &mut Vec<Training>, values: &[T], set: impl Fn(&mut Training, T)) {
    let with = |variant: &Training, value: T| {
        let mut variant = variant.clone();
        set(&mut variant, value);
        variant
    };
    let all = variants.iter().flat_map(|variant| values.iter().map(|v| with(variant, *v)));
    *variants = all.collect();
}
