//! What is parsed, and what is refused.

use super::*;

fn statements<'a>(text: &'a Text<'a>) -> Vec<&'a Statement<'a>> {
    let body = text.functions[0].body.as_ref().expect("a body");
    let statement = |item: &'a Item<'a>| match item {
        Item::Statement(statement) => Some(statement),
        Item::Open
        | Item::Close
        | Item::Label(_)
        | Item::Registers(..)
        | Item::Variable(_)
        | Item::Targets(..) => None,
    };
    body.iter().filter_map(statement).collect()
}

#[test]
fn a_kernel_with_everything() {
    let source = "
.version 9.0
.const .align 4 .b8 table[20] = {1, 0, 0, 0, -2};
.extern .shared .align 16 .b8 dynamic[];
.visible .entry name(.param .u64 .ptr .global .align 8 a, .param .align 8 .b8 b[248])
.maxntid 512, 2, 1
{ .reg .pred %p<4>; .reg .b16 low, high;
$L: @!%p1 bra.uni $L;
 ld.global.v2.u32 {%r1, _}, [%rd1+-16];
 setp.lt.and.s32 %p1|%p2, %r1, -5, !%p3; mov.f32 %f1, 0f3F800000; }
.section .debug_abbrev { .b8 1 }";
    let text = parse(source).expect("it is PTX");
    assert_eq!(text.version, (9, 0));
    assert_eq!(text.variables[0].bytes(), 20);
    assert_eq!(text.variables[1].count, None);
    let function = &text.functions[0];
    assert_eq!((function.name, function.maximum_threads), ("name", Some(1024)));
    let sizes: Vec<usize> = function.parameters.iter().map(Variable::bytes).collect();
    assert_eq!(sizes, [8, 248]);
    let statements = statements(&text);
    assert_eq!(statements[0].guard, Some(("%p1", true)));
    let address = Operand::Address(Box::new(Operand::Name("%rd1", 0)), -16);
    assert_eq!(statements[1].operands[1], address);
    let compare = [
        Operand::Pair("%p1", "%p2"),
        Operand::Name("%r1", 0),
        Operand::Number(5u64.wrapping_neg()),
        Operand::Not("%p3"),
    ];
    assert_eq!(statements[2].operands, compare);
    assert_eq!(statements[3].operands[1], Operand::Number(0x3f80_0000));
}

#[test]
fn mistakes_have_lines() {
    for (source, line) in [
        (".version 9.0\n.nonsense", 2),
        (".entry a()\n{\n ret", 3),
        (".entry a() {\n.reg .x7 %r;\n}", 2),
        (".entry a(\n.reg .b32 x) {}", 2),
        (".global .u32 x\n.global .u32 y;", 2),
    ] {
        assert_eq!(parse(source).expect_err(source).line, line, "{source}");
    }
}
