package main

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// findConstant finds the value of a package's constant in the package's files.
func findConstant(dir string, files []string, name string) (place, error) {
	var names []string
	for _, file := range files {
		file = filepath.Join(dir, file)
		source, err := os.ReadFile(file)
		if err != nil {
			return place{}, err
		}
		positions := token.NewFileSet()
		parsed, err := parser.ParseFile(positions, file, source, parser.SkipObjectResolution)
		if err != nil {
			return place{}, err
		}
		for _, spec := range constants(parsed) {
			for i, n := range spec.Names {
				if n.Name != name {
					names = append(names, n.Name)
					continue
				}
				if i >= len(spec.Values) {
					return place{}, fmt.Errorf("%s: constant %s has the expression of a line above, it cannot be given a value of its own", positions.Position(n.Pos()), name)
				}
				value := spec.Values[i]
				return place{file, source, positions.Position(value.Pos()).Offset, positions.Position(value.End()).Offset}, nil
			}
		}
	}
	slices.Sort(names)
	return place{}, fmt.Errorf("%s: there is no constant %s; there are: %s", dir, name, strings.Join(names, ", "))
}

// constants returns the constant declarations of a file, without those inside
// functions.
func constants(file *ast.File) (specs []*ast.ValueSpec) {
	for _, d := range file.Decls {
		group, ok := d.(*ast.GenDecl)
		if !ok || group.Tok != token.CONST {
			continue
		}
		for _, s := range group.Specs {
			specs = append(specs, s.(*ast.ValueSpec))
		}
	}
	return specs
}

// parseValues cuts a list at its commas, but not at those inside of an expression.
func parseValues(list string) ([]value, error) {
	const head = "f("
	call, err := parser.ParseExpr(head + list + ")")
	if err != nil {
		return nil, fmt.Errorf("values %q: must be Go expressions with commas between them: %w", list, err)
	}
	var values []value
	for _, e := range call.(*ast.CallExpr).Args {
		values = append(values, value{text: list[int(e.Pos())-1-len(head) : int(e.End())-1-len(head)]})
	}
	return values, nil
}

// same reports whether two expressions are written alike or are equal numbers.
func same(a, b string) bool {
	if oneLine(a) == oneLine(b) {
		return true
	}
	x, y := number(a), number(b)
	return x != nil && y != nil && constant.Compare(x, token.EQL, y)
}

// number returns the value of a numeric expression, nil if it cannot be told.
func number(expression string) constant.Value {
	v, err := types.Eval(token.NewFileSet(), nil, token.NoPos, expression)
	if err != nil || v.Value == nil {
		return nil
	}
	switch v.Value.Kind() {
	case constant.Int, constant.Float:
		return v.Value
	}
	return nil
}
