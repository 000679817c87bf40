package inference

import (
	"encoding/json"
	"fmt"
	"go/build"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/stretchr/testify/require"
)

// manifest is xcaddy.json: what somebody who builds a Caddy with this plugin
// wants to know of it.
type manifest struct {
	Name         string           `json:"name"`
	Description  string           `json:"description"`
	License      string           `json:"license"`
	GoModule     string           `json:"go_module"`
	CaddyVersion string           `json:"caddy_version"`
	Modules      []manifestModule `json:"modules"`
}

type manifestModule struct {
	ID        string `json:"id"`
	Directive string `json:"directive"`
	Inside    string `json:"inside"` // which block of a Caddyfile
}

func readManifest(t *testing.T) manifest {
	t.Helper()
	file, err := os.Open("xcaddy.json")
	require.NoError(t, err)
	defer file.Close()
	var m manifest
	decoder := json.NewDecoder(file)
	decoder.DisallowUnknownFields()
	require.NoError(t, decoder.Decode(&m))
	return m
}

// goMod returns what an expression's group matches in go.mod.
func goMod(t *testing.T, expression string) string {
	t.Helper()
	text, err := os.ReadFile("go.mod")
	require.NoError(t, err)
	match := regexp.MustCompile(expression).FindSubmatch(text)
	require.NotNil(t, match, "go.mod has no %s", expression)
	return string(match[1])
}

// plugin returns the packages that a Caddy built with the plugin gets of this
// module: the root package and all that it imports.
func plugin(t *testing.T, module string) map[string]bool {
	t.Helper()
	packages := make(map[string]bool)
	var visit func(path string)
	visit = func(path string) {
		if path != module && !strings.HasPrefix(path, module+"/") || packages[path] {
			return
		}
		packages[path] = true
		p, err := build.ImportDir(filepath.Join(".", strings.TrimPrefix(path, module)), 0)
		require.NoError(t, err)
		for _, imported := range p.Imports {
			visit(imported)
		}
	}
	visit(module)
	return packages
}

func TestTheManifestNamesWhatABuildRegisters(t *testing.T) {
	m := readManifest(t)
	packages := plugin(t, m.GoModule)
	require.Greater(t, len(packages), 1, "the walk over imports found nothing")
	require.NotContains(t, packages, m.GoModule+"/enginesim", "a plugin build would have the simulator in it")

	var registered []string
	for _, id := range caddy.Modules() {
		info, err := caddy.GetModule(id)
		require.NoError(t, err)
		kind := reflect.TypeOf(info.New())
		if kind.Kind() == reflect.Pointer {
			kind = kind.Elem()
		}
		if packages[kind.PkgPath()] && kind != reflect.TypeFor[testLog]() && kind != reflect.TypeFor[panicking]() {
			registered = append(registered, id)
		}
	}
	var named []string
	for _, module := range m.Modules {
		named = append(named, module.ID)
	}
	require.ElementsMatch(t, registered, named)
}

func TestTheManifestAgreesWithGoMod(t *testing.T) {
	m := readManifest(t)
	require.Equal(t, goMod(t, `(?m)^module (\S+)`), m.GoModule)
	require.Equal(t, goMod(t, `(?m)^\s*github\.com/caddyserver/caddy/v2 (\S+)$`), m.CaddyVersion)
}

func TestTheManifestNamesDirectivesThatMakeTheModules(t *testing.T) {
	for _, module := range readManifest(t).Modules {
		caddyfile, made := "", ""
		name := module.ID[strings.LastIndexByte(module.ID, '.')+1:]
		switch module.Inside {
		case "reverse_proxy":
			caddyfile = fmt.Sprintf(":80 {\n\treverse_proxy localhost:8000 {\n\t\t%s\n\t}\n}\n", module.Directive)
			made = fmt.Sprintf(`"selection_policy":{"policy":%q}`, name)
		case "global options":
			caddyfile = fmt.Sprintf("{\n\t%s\n}\n", module.Directive)
			made = fmt.Sprintf(`"apps":{%q:{`, name)
		}
		require.NotEmpty(t, caddyfile, "%s: inside of what?", module.ID)
		config, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(caddyfile), nil)
		require.NoError(t, err, module.ID)
		require.Contains(t, string(config), made, module.ID)
	}
}
